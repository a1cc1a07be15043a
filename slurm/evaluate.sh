#!/bin/bash
# pass@k of models, checkpoints or runs on 1 GPU node; several targets become a job array.
#
#   AOPSD_CONTAINER=IMAGE AOPSD_TARGETS="runs/a models/b" AOPSD_DATA="aime25 mine.jsonl" bash slurm/evaluate.sh \
#       [--dry-run] [options of `aopsd evaluate`, such as --engine vllm --samples 8]
#
# checks, says what, then submits itself. Existing samples are kept. All settings: slurm/lib.sh, docs/slurm.md.
#SBATCH --job-name=aopsd-evaluate
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --output=%x-%j.log

AOPSD_NODES=1
AOPSD_GPUS_PER_NODE=${AOPSD_GPUS_PER_NODE:-8}
AOPSD_RAY=false
AOPSD_TARGETS=${AOPSD_TARGETS:-}     # separated by spaces
AOPSD_DATA=${AOPSD_DATA:-}           # JSONL files or names of benchmarks, separated by spaces
AOPSD_RESULTS=${AOPSD_RESULTS:-}     # one folder per target; empty: runs/evaluations

if [[ ${0##*/} == slurm_script ]]; then here=$SLURM_SUBMIT_DIR; else here=$(dirname "$(dirname "$(readlink -f "$0")")"); fi
AOPSD_HOME=${AOPSD_HOME:-$here}
[[ -r $AOPSD_HOME/slurm/lib.sh ]] || { echo "error: no slurm/lib.sh in $AOPSD_HOME: submit from the checkout, or set AOPSD_HOME." >&2; exit 2; }
# shellcheck source=slurm/lib.sh
source "$AOPSD_HOME/slurm/lib.sh"

check_task() {
    check_own AOPSD_RESULTS --out
    read -ra targets <<<"$AOPSD_TARGETS"
    read -ra benchmarks <<<"$AOPSD_DATA"
    ((${#targets[@]})) || die "AOPSD_TARGETS is not set: runs, checkpoints or model directories, separated by spaces."
    ((${#benchmarks[@]})) || die "AOPSD_DATA is not set: JSONL files or names of benchmarks, separated by spaces."
    local path
    for path in "${targets[@]}"; do
        [[ -d $path ]] || die "AOPSD_TARGETS: $path is not there. Paths are taken from $AOPSD_HOME."
        check_mounted AOPSD_TARGETS "$path"
    done
    for path in "${benchmarks[@]}"; do
        [[ $path == */* || $path == *.jsonl ]] || continue
        check_file AOPSD_DATA "$path" "Paths are taken from $AOPSD_HOME."
        check_mounted AOPSD_DATA "$path"
    done
    if ((${#targets[@]} > 1)); then ARRAY=(--array="0-$((${#targets[@]} - 1))"); fi
    local index=${SLURM_ARRAY_TASK_ID:-0}
    target=${targets[index]:-}
    [[ -n $target ]] || die "array element $index: there are ${#targets[@]} targets."
    AOPSD_RUN=$(folder_of "$target") # must be there in the container
}

# TARGET: the folder of its results
folder_of() { realpath -m "${AOPSD_RESULTS:-runs/evaluations}/$(tr -c '[:alnum:]._\n-' _ <<<"$1")"; }

# Samples; `calls.jsonl` grows without any.
progress() { find "$AOPSD_RUN" -name '*.jsonl' ! -name calls.jsonl -size +0 -exec cksum {} + | sort; }

# TARGET -> command=(... evaluate)
evaluate_command() {
    command=("$AOPSD_PYTHON" -m nemo_aopsd evaluate "$1" --out "$(folder_of "$1")")
    local benchmark
    for benchmark in "${benchmarks[@]}"; do command+=(--data "$benchmark"); done
    command+=("${ARGS[@]}")
}

driver() {
    local -a command
    evaluate_command "$target"
    printf 'cd %q\n' "$AOPSD_HOME"
    printf '%q ' "${command[@]}"
    printf '\n'
}

# A benchmark of the hub is loaded into the cache here: nodes often have no network.
check_program() {
    local -a command
    local each
    for each in "${targets[@]}"; do
        evaluate_command "$each"
        # shellcheck disable=SC2154  # run_check of lib.sh sets it
        tell_check "$checker" "${command[@]:1}" --check
    done
}

main "$@"
