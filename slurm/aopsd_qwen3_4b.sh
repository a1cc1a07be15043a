#!/bin/bash
# AOPSD on Qwen3-4B-Instruct-2507, 1 node of 8 H100.
#
#   AOPSD_CONTAINER=IMAGE AOPSD_DATA=dags.jsonl bash slurm/aopsd_qwen3_4b.sh [--dry-run] [KEY=VALUE ...]
#
# checks, says what, then submits itself; `sbatch slurm/aopsd_qwen3_4b.sh` from the checkout works too, and checks in the
# job. An existing run is resumed. All settings: slurm/lib.sh, slurm/train.sh, docs/slurm.md.
#SBATCH --job-name=aopsd-qwen3-4b
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
#SBATCH --output=%x-%j.log

OWN_CONFIG=examples/configs/aopsd_qwen3_4b_megatron.yaml # its run folder, nodes and GPUs a node follow
OWN_RUN=runs/qwen3_4b OWN_NODES=1 OWN_GPUS=8

if [[ ${0##*/} == slurm_script ]]; then here=$SLURM_SUBMIT_DIR; else here=$(dirname "$(dirname "$(readlink -f "$0")")"); fi
AOPSD_HOME=${AOPSD_HOME:-$here}
[[ -r $AOPSD_HOME/slurm/lib.sh ]] || { echo "error: no slurm/lib.sh in $AOPSD_HOME: submit from the checkout, or set AOPSD_HOME." >&2; exit 2; }
# shellcheck source=slurm/lib.sh
source "$AOPSD_HOME/slurm/lib.sh"
# shellcheck source=slurm/train.sh
source "$AOPSD_HOME/slurm/train.sh"

main "$@"
