#!/bin/bash
# Reasoning graphs from verified solutions: serves a model with vLLM on 1 GPU node and runs `aopsd dag build` against it.
#
#   AOPSD_CONTAINER=IMAGE AOPSD_PROBLEMS=limo.jsonl AOPSD_DAGS=dags.jsonl AOPSD_MODEL=Qwen/Qwen3-32B \
#       bash slurm/dag_build.sh [--dry-run] [options of `aopsd dag build`]
#
# checks, says what, then submits itself. With AOPSD_BASE_URL it uses that server and no GPU. Existing answers are
# kept. All settings: slurm/lib.sh, docs/slurm.md.
#SBATCH --job-name=aopsd-dag-build
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --output=%x-%j.log

AOPSD_NODES=1
AOPSD_BASE_URL=${AOPSD_BASE_URL:-}   # URL of a running server; empty: start one
AOPSD_GPUS_PER_NODE=${AOPSD_GPUS_PER_NODE:-$([[ -n $AOPSD_BASE_URL ]] && echo 0 || echo 8)}
AOPSD_MIN_GPUS=$([[ -n $AOPSD_BASE_URL ]] && echo 0 || echo 1)
AOPSD_RAY=false
AOPSD_PROBLEMS=${AOPSD_PROBLEMS:-}   # JSONL with verified solutions
AOPSD_DAGS=${AOPSD_DAGS:-}           # file of accepted rows; journal and rejects go beside it
AOPSD_MODEL=${AOPSD_MODEL:-}         # name of the model, or its directory
AOPSD_SERVER=${AOPSD_SERVER:-}       # Python that imports vLLM; empty: that of NeMo RL's vLLM workers, else python
AOPSD_PORT=${AOPSD_PORT:-8000}
AOPSD_TP=${AOPSD_TP:-$AOPSD_GPUS_PER_NODE} # tensor parallelism of the server

if [[ ${0##*/} == slurm_script ]]; then here=$SLURM_SUBMIT_DIR; else here=$(dirname "$(dirname "$(readlink -f "$0")")"); fi
AOPSD_HOME=${AOPSD_HOME:-$here}
[[ -r $AOPSD_HOME/slurm/lib.sh ]] || { echo "error: no slurm/lib.sh in $AOPSD_HOME: submit from the checkout, or set AOPSD_HOME." >&2; exit 2; }
# shellcheck source=slurm/lib.sh
source "$AOPSD_HOME/slurm/lib.sh"

check_task() {
    check_own AOPSD_DAGS --out
    check_own AOPSD_BASE_URL --base-url
    check_own AOPSD_MODEL --model
    [[ -n $AOPSD_PROBLEMS ]] || die "AOPSD_PROBLEMS is not set: a JSONL file of problems with verified solutions."
    check_file AOPSD_PROBLEMS "$AOPSD_PROBLEMS" "Paths are taken from $AOPSD_HOME."
    check_mounted AOPSD_PROBLEMS "$AOPSD_PROBLEMS"
    [[ -n $AOPSD_DAGS ]] || die "AOPSD_DAGS is not set: the file for the accepted rows."
    [[ -n $AOPSD_MODEL ]] || die "AOPSD_MODEL is not set: the model to serve, such as Qwen/Qwen3-32B."
    [[ ! -e $AOPSD_MODEL ]] || check_mounted AOPSD_MODEL "$AOPSD_MODEL"
    AOPSD_RUN=$(realpath -m "$(dirname "$AOPSD_DAGS")") # must be there in the container
}

progress() { find "$AOPSD_RUN" -maxdepth 1 -name "$(basename "${AOPSD_DAGS%.jsonl}")*" -size +0 -exec cksum {} + | sort; }

# -> command=(... dag build)
build_command() {
    local url=${AOPSD_BASE_URL:-http://localhost:$AOPSD_PORT/v1}
    command=("$AOPSD_PYTHON" -m nemo_aopsd dag build "$AOPSD_PROBLEMS")
    command+=(--out "$AOPSD_DAGS" --base-url "$url" --model "$AOPSD_MODEL" "${ARGS[@]}")
}

driver() {
    local -a command
    build_command
    printf 'cd %q\n' "$AOPSD_HOME"
    [[ -n $AOPSD_BASE_URL ]] || printf 'source slurm/serve.sh %q %q %q %q %q %q\n' \
        "$AOPSD_MODEL" "$AOPSD_PORT" "$AOPSD_TP" "$AOPSD_WAIT" "$logs/server.log" "$AOPSD_SERVER"
    printf '%q ' "${command[@]}"
    printf '\n'
}

check_program() {
    local -a command
    build_command
    # shellcheck disable=SC2154  # run_check of lib.sh sets it
    tell_check "$checker" "${command[@]:1}" --check
}

main "$@"
