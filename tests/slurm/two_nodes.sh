#!/bin/bash
# A job whose driver is this folder's ray_driver.py, on two nodes with Ray as slurm/node.sh starts it. For test_real_ray.py.
#SBATCH --job-name=two-nodes
#SBATCH --signal=B:USR1@60
AOPSD_HOME=${AOPSD_HOME:-$(cd "$(dirname "$0")/../.." && pwd)}
AOPSD_NODES=2
AOPSD_GPUS_PER_NODE=1
# shellcheck source=slurm/lib.sh
source "$AOPSD_HOME/slurm/lib.sh"

: "${AOPSD_TEST_OUT:?}"
check_program() { :; }
driver() { printf '%q %q %q\n' "$AOPSD_PYTHON" "$AOPSD_HOME/tests/slurm/ray_driver.py" "$AOPSD_TEST_OUT"; }

main "$@"
