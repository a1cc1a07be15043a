#!/usr/bin/env bash
# The install steps of the image, each by its name; containers/README.md says what they do and how to run them elsewhere.
#
#   install.sh dependencies     what the driver lacks, into $AOPSD_SITE ($AOPSD_HOME/site)
#   install.sh package          both onto the path of the driver and of every worker environment; the aopsd command
#   install.sh apex REF         NVIDIA apex at tag REF, built from source into the Megatron worker's environment
#   install.sh smoke            does all of it work?
set -euo pipefail

AOPSD_HOME="${AOPSD_HOME:-/opt/aopsd}"
SITE="${AOPSD_SITE:-${AOPSD_HOME}/site}"
DRIVER_VENV="${NEMO_RL_DRIVER_VENV:-/opt/nemo_rl_venv}"
WORKER_VENVS="${NEMO_RL_VENV_DIR:-/opt/ray_venvs}"
BIN="${AOPSD_BIN:-/usr/local/bin}"
PARENTS=nemo_rl.models
MEGATRON="${PARENTS}.policy.workers.megatron_policy_worker.MegatronPolicyWorker"
VLLM="${PARENTS}.generation.vllm.vllm_worker.VllmGenerationWorker"

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

# The driver's interpreter and each worker environment's, one a line.
interpreters() {
    [[ -x "${DRIVER_VENV}/bin/python" ]] || fail "${DRIVER_VENV}/bin/python is not there. Set NEMO_RL_DRIVER_VENV."
    echo "${DRIVER_VENV}/bin/python"
    local python found=0
    for python in "${WORKER_VENVS}"/*/bin/python; do
        [[ -x "${python}" ]] || continue
        echo "${python}"
        found=1
    done
    [[ "${found}" == 1 ]] || fail "no */bin/python in ${WORKER_VENVS}. Set NEMO_RL_VENV_DIR."
}

dependencies() {
    uv pip install --python "${DRIVER_VENV}/bin/python" --no-cache --no-deps --target "${SITE}" \
        --requirement "${AOPSD_HOME}/containers/requirements.txt"
}

# A .pth file appends to sys.path: the environment's own packages stay first, and none of them changes.
package() {
    local python folder list
    list="$(interpreters)"
    while read -r python; do
        folder="$("${python}" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
        printf '%s\n' "${AOPSD_HOME}" "${SITE}" >"${folder}/nemo_aopsd.pth"
        echo "${folder}/nemo_aopsd.pth"
    done <<<"${list}"
    mkdir -p "${BIN}"
    printf '#!/bin/sh\nexec %s -m nemo_aopsd "$@"\n' "${DRIVER_VENV}/bin/python" >"${BIN}/aopsd"
    chmod 755 "${BIN}/aopsd"
}

apex() {
    local python="${WORKER_VENVS}/${MEGATRON}/bin/python"
    [[ -x "${python}" ]] || fail "${python} is not there: apex serves Megatron's workers only."
    APEX_CPP_EXT=1 APEX_CUDA_EXT=1 uv pip install --python "${python}" --no-cache --no-deps --no-build-isolation \
        "apex @ git+https://github.com/NVIDIA/apex@$1"
    "${python}" -c 'import torch, fused_weight_gradient_mlp_cuda'
}

# Our class in the environment of its parent. An image is built without a GPU: what needs the driver is left to `aopsd doctor`.
worker() {
    local python="${WORKER_VENVS}/$2/bin/python" answer
    [[ -x "${python}" ]] || fail "${python} is not there."
    answer="$("${python}" -P "${AOPSD_HOME}/nemo_aopsd/cluster/doctor/probe.py" "$1" | tail -n 1)"
    case "${answer}" in
        *'"import_error": null'*) echo "ok: $1 in ${python}" ;;
        *libcuda.so* | *libnvidia-ml.so*) echo "not checked without a GPU: $1; run aopsd doctor on a node" ;;
        *) fail "$1 in ${python}: ${answer}" ;;
    esac
}

smoke() {
    local python list
    list="$(interpreters)"
    while read -r python; do
        (cd / && "${python}" -c 'import nemo_aopsd.types, nemo_aopsd.method.step') || fail "${python} cannot import nemo_aopsd."
        echo "ok: ${python}"
    done <<<"${list}"
    worker nemo_aopsd.engines.nemo_rl.vllm_worker.ProbingVllmWorker "${VLLM}"
    worker nemo_aopsd.engines.nemo_rl.megatron_worker.TeacherMegatronWorker "${MEGATRON}"
    (cd "${AOPSD_HOME}" && "${BIN}/aopsd" train examples/configs/aopsd_tiny_cpu.yaml logger.log_dir=/tmp/aopsd-smoke --check)
    TORCH_CUDA_ARCH_LIST="${TORCH_CUDA_ARCH_LIST:-9.0}" "${DRIVER_VENV}/bin/python" -c '
import sys
from nemo_aopsd.config.load import load_config
from nemo_aopsd.engines import nemo_rl
nemo_rl.check(load_config(sys.argv[1]))' "${AOPSD_HOME}/examples/configs/aopsd_qwen3_4b_megatron.yaml"
    echo "smoke test passed"
}

case "${1:-}" in
    dependencies | package | smoke) "$1" ;;
    apex) apex "${2:?install.sh apex REF: which tag of NVIDIA/apex?}" ;;
    *) fail "expected dependencies, package, apex REF or smoke; got '${1:-}'." ;;
esac
