"""The resolved config of a cluster run by dotted key, with the sizes that several rules need."""

from typing import Any

from nemo_aopsd.config.checks import select

MEGATRON, DTENSOR, VLLM = "policy.megatron_cfg", "policy.dtensor_cfg", "policy.generation.vllm_cfg"
# Tokens that a rank's share of a batch must be a multiple of (models/megatron/data.py); for a recipe not listed 16.
_FP8_MULTIPLE = {"blockwise": 128, "mxfp8": 32}


class Unreadable(Exception):
    """A rule needs a size that is itself listed as a fault."""


def is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


class Tree:
    """The resolved config by dotted key, and the few values that many rules need."""

    def __init__(self, raw: dict[str, Any]):
        self._raw = raw

    def __getitem__(self, key: str) -> Any:
        """The value; None where there is none."""
        return select(self._raw, key)

    def size(self, key: str) -> int:
        if not is_size(self[key]):
            raise Unreadable(key)
        return self[key]

    @property
    def uses_megatron(self) -> bool:
        return bool(self[f"{MEGATRON}.enabled"])

    @property
    def uses_dtensor(self) -> bool:
        return bool(self[f"{DTENSOR}.enabled"])

    @property
    def backend(self) -> str:
        """The block of the training backend."""
        return MEGATRON if self.uses_megatron else DTENSOR

    @property
    def tensor_key(self) -> str:
        return f"{self.backend}.tensor_{'model_' if self.uses_megatron else ''}parallel_size"

    @property
    def tensor(self) -> int:
        return self.size(self.tensor_key)

    @property
    def pipeline(self) -> int:
        return self.size(f"{MEGATRON}.pipeline_model_parallel_size") if self.uses_megatron else 1

    @property
    def context(self) -> int:
        return self.size(f"{self.backend}.context_parallel_size")

    @property
    def num_gpus(self) -> int:
        return self.size("cluster.num_nodes") * self.size("cluster.gpus_per_node")

    @property
    def model_parallel_sizes(self) -> dict[str, int]:
        """GPUs of one copy of the model are their product."""
        return {"TP": self.tensor, "PP": self.pipeline, "CP": self.context}

    @property
    def is_packed(self) -> bool:
        return bool(self["policy.sequence_packing.enabled"])

    @property
    def token_budgets(self) -> list[str]:
        """The blocks by which rows are grouped by tokens; without any, by number."""
        return [name for name in ("sequence_packing", "dynamic_batching") if self[f"policy.{name}.enabled"]]

    @property
    def fp8_multiple(self) -> int:
        """1 where training is not in FP8."""
        if not (self.uses_megatron and self[f"{MEGATRON}.fp8_cfg.enabled"]):
            return 1
        return _FP8_MULTIPLE.get(self[f"{MEGATRON}.fp8_cfg.fp8_recipe"], 16)
