# Training, shared by the scripts of the models: from settings to the driver's commands. Read after lib.sh.
# shellcheck shell=bash

# Settings of a run.
AOPSD_DATA=${AOPSD_DATA:-}           # problems with graphs, JSONL
AOPSD_EVAL_DATA=${AOPSD_EVAL_DATA:-} # held-out problems, JSONL; empty: those of the config, if any
AOPSD_RUN=${AOPSD_RUN:-}             # folder of the run; empty, as the next two: what the config says
AOPSD_NODES=${AOPSD_NODES:-}
AOPSD_GPUS_PER_NODE=${AOPSD_GPUS_PER_NODE:-}
# What a script says of its own config (OWN_...) spares a Python; tests/slurm compares it with the file.
if [[ $AOPSD_ENGINE == local ]]; then OWN_CONFIG=examples/configs/aopsd_tiny_cpu.yaml OWN_RUN=runs/tiny; fi
AOPSD_CONFIG=${AOPSD_CONFIG:-$OWN_CONFIG}
OVERRIDES=()

# Run folder and size of the job: as set, else as the config says. A job gets what its submission has found.
settle_task() {
    local name index=0 taken=
    local -a said=("$OWN_NODES" "$OWN_GPUS" "$OWN_RUN")
    check_file AOPSD_CONFIG "$AOPSD_CONFIG" "Paths are taken from $AOPSD_HOME."
    if [[ $AOPSD_CONFIG == "$OWN_CONFIG" ]]; then
        AOPSD_MIN_GPUS=${AOPSD_MIN_GPUS:-$((OWN_NODES * OWN_GPUS))}
    elif [[ -z $AOPSD_NODES || -z $AOPSD_GPUS_PER_NODE || -z $AOPSD_RUN ]]; then
        read_config
    fi
    for name in AOPSD_NODES AOPSD_GPUS_PER_NODE AOPSD_RUN; do
        [[ -n ${!name} ]] || { printf -v "$name" %s "${said[index]}"; taken+=" $name=${said[index]}"; }
        index=$((index + 1))
    done
    AOPSD_RUN=$(realpath -m "$AOPSD_RUN")
    [[ -z $taken ]] || TOLD+=("from $AOPSD_CONFIG:$taken")
    [[ -z $AOPSD_DATA ]] || TOLD+=("AOPSD_DATA=$AOPSD_DATA takes the place of data.train.data_path of $AOPSD_CONFIG")
    [[ -z $AOPSD_EVAL_DATA ]] ||
        TOLD+=("AOPSD_EVAL_DATA=$AOPSD_EVAL_DATA takes the place of aopsd.evaluation.data_path of $AOPSD_CONFIG")
    export AOPSD_RUN AOPSD_NODES AOPSD_GPUS_PER_NODE
}

# -> said=(nodes, GPUs a node, run folder) of a config that is not the script's own
read_config() {
    local python told
    python=$(python_with nemo_aopsd pydantic omegaconf)
    [[ -n $python ]] || die "AOPSD_RUN, AOPSD_NODES and AOPSD_GPUS_PER_NODE are not all set, and no Python of this host" \
        "reads them from $AOPSD_CONFIG. Set them, or run make setup in $AOPSD_HOME."
    told=$("$python" - "$AOPSD_CONFIG" aopsd.engine="$AOPSD_ENGINE" "${ARGS[@]}" 2>&1 <<'PYTHON'
import sys
from nemo_aopsd.config.load import load_config
from nemo_aopsd.errors import UserError
try:
    config = load_config(sys.argv[1], sys.argv[2:])
except UserError as error:
    sys.exit(str(error))
cluster = config.raw.get("cluster") or {}
print(cluster.get("num_nodes"), cluster.get("gpus_per_node"), config.logger["log_dir"])
PYTHON
    ) || die "$told"
    read -r "said[0]" "said[1]" "said[2]" <<<"$told"
}

check_task() {
    local word
    for word in "${ARGS[@]}"; do
        [[ $word == *=* && $word != -* ]] || die "unknown argument '$word': settings are KEY=VALUE, besides --dry-run and --help."
    done
    check_own AOPSD_RUN logger.log_dir # what set_overrides makes
    check_own AOPSD_ENGINE aopsd.engine
    check_own AOPSD_NODES cluster.num_nodes
    check_own AOPSD_GPUS_PER_NODE cluster.gpus_per_node
    [[ $AOPSD_SBATCH != *--array* ]] || check_own "--array of AOPSD_SBATCH" aopsd.seed
    if [[ $AOPSD_ENGINE == nemo_rl && $AOPSD_CONFIG == "$OWN_CONFIG" && -z $AOPSD_DATA && " ${ARGS[*]}" != *" data.train.data_path="* ]]; then
        die "AOPSD_DATA is not set: a JSONL file of problems with graphs (to try: examples/data/problems.jsonl)."
    fi
    [[ -z $AOPSD_DATA ]] || check_file AOPSD_DATA "$AOPSD_DATA" "Paths are taken from $AOPSD_HOME."
    [[ -z $AOPSD_EVAL_DATA ]] || check_file AOPSD_EVAL_DATA "$AOPSD_EVAL_DATA" "Paths are taken from $AOPSD_HOME."
    set_overrides
}

set_overrides() {
    OVERRIDES=(aopsd.engine="$AOPSD_ENGINE")
    [[ $AOPSD_ENGINE == local ]] || OVERRIDES+=(cluster.num_nodes="$AOPSD_NODES" cluster.gpus_per_node="$AOPSD_GPUS_PER_NODE")
    [[ -z $AOPSD_DATA ]] || OVERRIDES+=(data.train.data_path="$AOPSD_DATA")
    [[ -z $AOPSD_EVAL_DATA ]] || OVERRIDES+=(aopsd.evaluation.data_path="$AOPSD_EVAL_DATA")
    if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then # sbatch --array=0-4: one seed per element
        AOPSD_RUN+=/seed_$SLURM_ARRAY_TASK_ID
        OVERRIDES+=(aopsd.seed="$SLURM_ARRAY_TASK_ID")
    fi
    OVERRIDES+=("${ARGS[@]}" logger.log_dir="$AOPSD_RUN")
}

train_command() {
    command=("$AOPSD_PYTHON" examples/run_aopsd.py --config "$AOPSD_CONFIG" "${OVERRIDES[@]}")
    if [[ -f $AOPSD_RUN/config.yaml ]]; then command+=(--resume "$AOPSD_RUN"); fi
}

driver() {
    local -a command
    train_command
    printf 'cd %q\n' "$AOPSD_HOME"
    printf '%q ' "${command[@]}"
    printf '|| exit $?\n'
    printf '%q -m nemo_aopsd report %q || echo "warning: no report; the training is complete"\n' \
        "$AOPSD_PYTHON" "$AOPSD_RUN"
}

progress() { kept_of_run "$AOPSD_RUN"; }

check_program() {
    local -a command
    train_command
    # shellcheck disable=SC2154  # run_check of lib.sh sets it
    tell_check "$checker" "${command[@]:1}" --check --mounts "$(all_mounts)"
}
