"""Sizes that do not fit the model. Only where its config.json can be read here: else NeMo RL finds out.

The rules are those of Megatron-core 0.19 (its core/transformer: transformer_config.py, transformer_block.py and
moe/moe_layer.py; core/tensor_parallel/layers.py), of NeMo RL v0.7.0's DTensor plans (models/dtensor/parallelize.py) and
of vLLM 0.20 (config/model.py, and the attention of its models).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nemo_aopsd.cluster.faults import Fault, must_be
from nemo_aopsd.cluster.tree import MEGATRON, VLLM, Tree, is_size
from nemo_aopsd.models.config_json import ModelConfig
from nemo_aopsd.models.limits import ROW

ModelRule = Callable[[Tree, ModelConfig], Iterator[Fault]]
FIRST, LAST = (f"{MEGATRON}.num_layers_in_{end}_pipeline_stage" for end in ("first", "last"))
_PIPELINE = f"{MEGATRON}.pipeline_model_parallel_size"


def _stages(tree: Tree, model: ModelConfig) -> Iterator[Fault]:
    given = {key: tree[key] for key in (FIRST, LAST) if tree[key] is not None}
    if not tree.uses_megatron or model.layers is None or not all(map(is_size, given.values())):
        return
    layers, stages = model.layers, tree.pipeline
    if _divides(layers, stages, list(given.values())):
        return
    if given:
        listed = " and ".join(f"{key}={size}" for key, size in given.items())
        expected = (
            f"stages of equal size beside {listed}: {layers - sum(given.values())} of the {layers} layers of "
            f"{model.where} are left for {stages - len(given)} other stages"
        )
    else:
        expected = f"a divisor of the {layers} layers of {model.where}"
    divisors = ", ".join(str(each) for each in range(1, layers + 1) if layers % each == 0)
    remedy = f"Set it to one of {divisors}" + (" without these keys" if given else "")
    first = _best_first_stage(layers, stages)
    yield Fault(_PIPELINE, stages, expected, f"{remedy}, or {FIRST}={first}" if first else remedy)


def _divides(layers: int, stages: int, given: list[int]) -> bool:
    """Whether the layers that no given stage takes fill the other stages evenly."""
    layers, stages = layers - sum(given), stages - len(given)
    if layers <= 0 or stages <= 0:
        return layers == stages == 0
    return layers % stages == 0


def _best_first_stage(layers: int, stages: int) -> int | None:
    """Layers of a first stage behind which the others are equal, so that the largest is smallest; None if none is."""
    sizes = [first for first in range(1, layers) if _divides(layers, stages, [first])]
    return min(sizes, key=lambda first: (max(first, (layers - first) // (stages - 1)), -first), default=None)


def _tensor(tree: Tree, model: ModelConfig) -> Iterator[Fault]:
    parts = {"attention heads": model.heads}
    if not tree.uses_megatron:
        yield from _indivisible(tree.tensor_key, tree.tensor, parts | {"key-value heads": model.key_heads}, model)
        return
    # Megatron could pad the vocabulary, but NeMo RL does not tell it to.
    parts |= {"words of the vocabulary": model.vocabulary, "columns of the MLP": _dense_width(model)}
    parts |= {f"{kind} of linear attention": number for kind, number in model.linear_heads.items()}
    yield from _indivisible(tree.tensor_key, tree.tensor, parts, model, model.key_heads)


def _sampler_tensor(tree: Tree, model: ModelConfig) -> Iterator[Fault]:
    key, parts = f"{VLLM}.tensor_parallel_size", {"attention heads": model.heads}
    parts |= {"columns of the MLP": _dense_width(model)}
    yield from _indivisible(key, tree.size(key), parts, model, model.key_heads)


def _dense_width(model: ModelConfig) -> int | None:
    return model.mlp_width if model.experts == 0 else None


def _indivisible(
    key: str, size: int, parts: dict[str, int | None], model: ModelConfig, groups: int | None = None
) -> Iterator[Fault]:
    """GPUs take equal shares of `parts`, and each one whole key-value heads (`groups`) or a copy of one."""
    known = {name: number for name, number in parts.items() if number}

    def fits(size: int) -> bool:
        shared = not groups or groups % size == 0 or size % groups == 0
        return shared and not any(number % size for number in known.values())

    if fits(size):
        return
    wrong = [f"{number} {name}" for name, number in known.items() if number % size]
    expected = f"a divisor of the {' and the '.join(wrong)}" if wrong else ""
    expected = expected or f"a divisor or a multiple of the {groups} key-value heads"
    others = " or ".join(str(other) for other in (1, 2, 4, 8, 16) if fits(other))
    yield Fault(key, size, f"{expected} of {model.where}", f"Set {key} to {others}")


def _experts(tree: Tree, model: ModelConfig) -> Iterator[Fault]:
    if model.experts is None:
        return
    keys = [f"{MEGATRON}.expert_model_parallel_size"] if tree.uses_megatron else []
    for key in (*keys, f"{VLLM}.expert_parallel_size"):
        size = tree.size(key)
        if size > 1 and model.experts == 0:
            yield must_be(tree, key, 1, f"the model has no experts, by {model.where}")
        elif key in keys and model.experts % size:
            expected = f"a divisor of the {model.experts} experts of {model.where}"
            yield Fault(key, size, expected, f"Set {key} to a power of two that divides them, or to 1")


def _row(tree: Tree, model: ModelConfig) -> Iterator[Fault]:
    if model.longest_row is not None and tree.size(ROW) > model.longest_row:
        expected = f"at most {model.longest_row}, the positions of {model.where}: vLLM refuses more"
        yield Fault(ROW, tree[ROW], expected, f"Set {ROW}={model.longest_row}")


MODEL_RULES: tuple[ModelRule, ...] = (*(_stages, _tensor, _sampler_tensor, _experts, _row),)
