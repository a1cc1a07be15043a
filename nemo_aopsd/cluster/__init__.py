"""Whether a cluster fits a config, and what a run there will take.

`WORKERS` has the Ray workers of the NeMo RL engine by name: each class of ours, and the class of NeMo RL in whose
environment it runs. Names only, so that `aopsd doctor` knows them without the engine. `SCORED_ROWS` is how many rows
of logits vLLM forms at a time when it scores; `SPARE` are the bytes of a GPU that stay free beside a student that waits
there while vLLM shows the teacher: for the row scorer and work space of kernels.
"""

SCORED_ROWS = 1024
SPARE = 8 * 2**30


def student_has_room(weights: float, free: float) -> bool:
    """Whether vLLM's student can wait on a GPU: bytes of its weights there, and those that are free."""
    return weights + SPARE <= free


_OURS, _THEIRS = "nemo_aopsd.engines.nemo_rl", "nemo_rl.models"
WORKERS = {
    "vllm": (
        f"{_OURS}.vllm_worker.ProbingVllmWorker",
        f"{_THEIRS}.generation.vllm.vllm_worker.VllmGenerationWorker",
    ),
    "megatron": (
        f"{_OURS}.megatron_worker.TeacherMegatronWorker",
        f"{_THEIRS}.policy.workers.megatron_policy_worker.MegatronPolicyWorker",
    ),
    "dtensor": (
        f"{_OURS}.dtensor_worker.TeacherDTensorWorker",
        f"{_THEIRS}.policy.workers.dtensor_policy_worker.DTensorPolicyWorker",
    ),
}
