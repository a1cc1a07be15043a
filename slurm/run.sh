#!/bin/bash
# One command now, on one node, in the container of the jobs, with their mounts, account and partition.
#
#   AOPSD_CONTAINER=IMAGE bash slurm/run.sh aopsd doctor CONFIG [KEY=VALUE ...]
#   AOPSD_CONTAINER=IMAGE AOPSD_GPUS_PER_NODE=0 bash slurm/run.sh COMMAND ...
#
# `aopsd` is this checkout's, whether the image has it or not. It waits for a node. All settings: slurm/lib.sh, docs/slurm.md.

AOPSD_HOME=${AOPSD_HOME:-$(dirname "$(dirname "$(readlink -f "$0")")")}
AOPSD_NODES=1
AOPSD_GPUS_PER_NODE=${AOPSD_GPUS_PER_NODE:-8}
AOPSD_MIN_GPUS=0
# shellcheck source=slurm/lib.sh
source "$AOPSD_HOME/slurm/lib.sh"

case ${1:-} in '' | -h | --help) usage; exit 0 ;; esac
: "${AOPSD_PYTHON:=$(default_python)}"
check_settings
check_environment
command -v srun >/dev/null || die "srun is not on the PATH: run this on a login node of the cluster."
mkdir -p "$AOPSD_LOGS" # one of the mounts
words=("$@")
if [[ $1 == aopsd ]]; then words=("$AOPSD_PYTHON" -m nemo_aopsd "${@:2}"); fi
command=(srun --nodes=1 --ntasks=1 --export=ALL)
ask_slurm
enter_container
exec "${command[@]}" "${words[@]}"
