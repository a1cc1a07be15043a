# Training, shared by the scripts of the models: from settings to the driver's commands. Read after lib.sh.
# shellcheck shell=bash

# Settings of a run.
AOPSD_DATA=${AOPSD_DATA:-}           # problems with graphs, JSONL
AOPSD_EVAL_DATA=${AOPSD_EVAL_DATA:-} # held-out problems, JSONL; empty: those of the config, if any
if [[ $AOPSD_ENGINE == local ]]; then
    AOPSD_CONFIG=${AOPSD_CONFIG:-examples/configs/aopsd_tiny_cpu.yaml}
else
    AOPSD_CONFIG=${AOPSD_CONFIG:-$AOPSD_MODEL_CONFIG}
fi
AOPSD_RUN=$(realpath -m "${AOPSD_RUN:-$AOPSD_HOME/runs/$AOPSD_NAME}")
OVERRIDES=()

check_task() {
    cd "$AOPSD_HOME" || die "AOPSD_HOME: $AOPSD_HOME is not there."
    check_file AOPSD_CONFIG "$AOPSD_CONFIG" "Paths are taken from $AOPSD_HOME."
    local word
    for word in "${ARGS[@]}"; do
        [[ $word == *=* && $word != -* ]] || die "unknown argument '$word': settings are KEY=VALUE, besides --dry-run and --help."
    done
    check_own AOPSD_RUN logger.log_dir # what set_overrides makes
    check_own AOPSD_ENGINE aopsd.engine
    check_own AOPSD_NODES cluster.num_nodes
    check_own AOPSD_GPUS_PER_NODE cluster.gpus_per_node
    [[ $AOPSD_SBATCH != *--array* ]] || check_own "--array of AOPSD_SBATCH" aopsd.seed
    if [[ $AOPSD_ENGINE == nemo_rl && -z $AOPSD_DATA && " ${ARGS[*]}" != *" data.train.data_path="* ]]; then
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

check_program() {
    local -a command
    train_command
    # shellcheck disable=SC2154  # run_check of lib.sh sets it
    tell_check "$checker" "${command[@]:1}" --check --mounts "$(all_mounts)"
}
