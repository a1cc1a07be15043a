"""What the plan's seconds are computed from: data sheets of the GPUs that were measured, rates, and their errors."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GPU:
    """Data sheet: bytes, FLOP/s of dense bfloat16, bytes/s; `link` (NVLink 4) and `host` (PCIe 5 x16) one way."""

    name: str
    memory: int  # as nvidia-smi says
    bandwidth: float
    flops: float = 989.4e12
    link: float = 450e9
    host: float = 64e9


GPUS = {
    "h100": GPU("NVIDIA H100 SXM 80GB", 81559 * 2**20, 3.35e12),
    "h200": GPU("NVIDIA H200 SXM 141GB", 143771 * 2**20, 4.8e12),
}
HOST_MEMORY = 2 * 10**12  # of a node of 8, as in the DGX user guides


@dataclass(frozen=True)
class Rates:
    """Shares of a data sheet's rate, and waits in seconds."""

    # From one H100 with stock vLLM 0.20.0 and Qwen3-4B's shape: 64 responses of 2,048 tokens in 19.7 s, 64 rows of
    # 3,548 tokens read in 3.4 s, 1,472 continuations of 7 or 8 tokens in 2.4 s. The split is a judgement.
    sampler_bandwidth: float = 0.85
    sampler_compute: float = 0.55
    sampler_step: float = 1.2e-3  # of one decoding step: host work, and choosing tokens
    sampler_request: float = 0.5e-3
    # Assumed, and then held against the measured steps: ERRORS.
    sampler_sync: float = 20e-6  # a small all-reduce within a node
    update_compute: float = 0.40
    score_compute: float = 0.35
    layer: float = 1e-4  # launches of one layer in one pass over a micro-batch
    host: float = 0.6
    refit: float = 0.05  # of the link: renaming, gathering and CUDA IPC, bucket by bucket
    # Fitted to the same steps, so ERRORS tells how well they fit. `link` has all that tensor parallelism cost in an
    # update as if messages had; NCCL's own of that size went at 0.26 to 0.35 of the link's rate on the same machine.
    link: float = 0.075
    turn: float = 0.3  # one change between vLLM and trainer, beside the copies


Errors = dict[str, tuple[float, float]]
# Least and greatest relative error of these rates in measured steps of Qwen3-4B's shape on one and two H200, by stage
# (docs/scaling.md). The engine changes turns within the rollout, so the refit's seconds are measured with it.
ERRORS: Errors = {
    "rollout": (-0.06, 0.0),
    "student": (0.09, 0.09),
    "teacher": (-0.11, 0.19),
    "probes": (-0.17, 0.18),
    "update": (-0.09, 0.03),
    "total": (-0.06, 0.02),
}
MEASURED = "Qwen3-4B's shape on one and two H200 of one node, in bfloat16"
MEASURED_MODEL, MEASURED_GPUS = 4_022_468_096, 2
