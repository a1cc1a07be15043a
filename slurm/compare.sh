#!/bin/bash
# A suite of methods as a job array: one element per member and seed, each on one node.
#
#   AOPSD_CONTAINER=none AOPSD_SUITE=examples/suites/embedded.yaml AOPSD_MEMBERS="base opsd aopsd" AOPSD_SEEDS=3 \
#       bash slurm/compare.sh [--dry-run]
#
# checks, says what, then submits itself; complete runs are kept and incomplete ones resume. Afterwards, for the table:
#   aopsd compare SUITE --seeds 3 --out AOPSD_OUT
# All settings: slurm/lib.sh, docs/slurm.md.
#SBATCH --job-name=aopsd-compare
#SBATCH --nodes=1
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --output=%x-%A_%a.log

AOPSD_ENGINE=${AOPSD_ENGINE:-local} # that of the suite's config
AOPSD_NODES=1
AOPSD_GPUS_PER_NODE=${AOPSD_GPUS_PER_NODE:-8}
AOPSD_SUITE=${AOPSD_SUITE:-}     # YAML
AOPSD_MEMBERS=${AOPSD_MEMBERS:-} # names in the suite, separated by spaces; `base` first: the others share its evaluation
AOPSD_SEEDS=${AOPSD_SEEDS:-3}
AOPSD_OUT=${AOPSD_OUT:-}         # empty: runs/compare/ and the suite's name

if [[ ${0##*/} == slurm_script ]]; then here=$SLURM_SUBMIT_DIR; else here=$(dirname "$(dirname "$(readlink -f "$0")")"); fi
AOPSD_HOME=${AOPSD_HOME:-$here}
[[ -r $AOPSD_HOME/slurm/lib.sh ]] || { echo "error: no slurm/lib.sh in $AOPSD_HOME: submit from the checkout, or set AOPSD_HOME." >&2; exit 2; }
# shellcheck source=slurm/lib.sh
source "$AOPSD_HOME/slurm/lib.sh"

check_task() {
    ((${#ARGS[@]} == 0)) || die "unknown argument '${ARGS[0]}': settings of runs are in the suite."
    [[ -n $AOPSD_SUITE ]] || die "AOPSD_SUITE is not set: a suite such as examples/suites/embedded.yaml."
    check_file AOPSD_SUITE "$AOPSD_SUITE" "Paths are taken from $AOPSD_HOME."
    check_mounted AOPSD_SUITE "$AOPSD_SUITE"
    [[ $AOPSD_SEEDS =~ ^[1-9][0-9]*$ ]] || die "AOPSD_SEEDS is '$AOPSD_SEEDS'; it must be a whole number of at least 1."
    read -ra members <<<"$AOPSD_MEMBERS"
    ((${#members[@]})) || die "AOPSD_MEMBERS is not set: names of members of the suite, separated by spaces."
    local elements=$((${#members[@]} * AOPSD_SEEDS)) index=${SLURM_ARRAY_TASK_ID:-0}
    ARRAY=(--array="0-$((elements - 1))")
    ((index < elements)) || die "array element $index: there are $elements, members x seeds."
    element=${members[index % ${#members[@]}]}/seed_$((index / ${#members[@]}))
    local name=${AOPSD_SUITE##*/}
    AOPSD_RUN=$(realpath -m "${AOPSD_OUT:-runs/compare/${name%.yaml}}") # must be there in the container
}

# Elements share the folder; only the element's own run counts.
progress() { kept_of_run "$AOPSD_RUN/$element"; }

driver() {
    local -a command=("$AOPSD_PYTHON" -m nemo_aopsd compare "$AOPSD_SUITE")
    command+=(--seeds "$AOPSD_SEEDS" --out "$AOPSD_RUN" --only "$element")
    printf 'cd %q\n' "$AOPSD_HOME"
    printf '%q ' "${command[@]}"
    printf '\n'
}

check_program() {
    local -a command=("$checker" -m nemo_aopsd compare "$AOPSD_SUITE" --dry-run)
    local member
    for member in "${members[@]}"; do command+=(--only "$member"); done
    "${command[@]}" --out "$AOPSD_RUN" >/dev/null || die "the suite above cannot be right; nothing was submitted."
    echo "# checked: settings and problems of each member. Not checked: the container's mounts, packages and GPUs"
}

main "$@"
