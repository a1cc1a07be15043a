"""Sizes that do not fit the model, if its config.json can be read here; otherwise NeMo RL checks them.

The rules are those of Megatron-core 0.19 (its core/transformer: transformer_config.py, transformer_block.py and
moe/moe_layer.py; core/tensor_parallel/layers.py), of NeMo RL v0.7.0's DTensor plans (models/dtensor/parallelize.py) and
of vLLM 0.20 (config/model.py, and the attention of its models).
"""

from collections.abc import Callable, Iterator

from nemo_aopsd.cluster.rules import Fault, must_be
from nemo_aopsd.cluster.tree import MEGATRON, VLLM, Tree, is_size
from nemo_aopsd.models.config_json import ModelConfig

_ENDS = tuple(f"{MEGATRON}.num_layers_in_{end}_pipeline_stage" for end in ("first", "last"))
_PIPELINE = f"{MEGATRON}.pipeline_model_parallel_size"
_NOT_HANDED_ON = (
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
    *("pipeline_model_parallel_layout", "virtual_pipeline_model_parallel_size"),
)


def _stages(tree: Tree, model: ModelConfig) -> Iterator[Fault]:
    if not tree.uses_megatron:
        return
    for key in (f"{MEGATRON}.{name}" for name in _NOT_HANDED_ON):
        if tree[key]:
            why = "NeMo RL v0.7.0 does not pass it to Megatron, which would split the layers evenly anyway"
            yield must_be(tree, key, None, why, " or ".join(_ENDS))
    given = {key: tree[key] for key in _ENDS if tree[key] is not None}
    if model.layers is None or not all(map(is_size, given.values())):
        return
    if not _divides(model.layers, tree.pipeline, list(given.values())):
        left, others = model.layers - sum(given.values()), tree.pipeline - len(given)
        expected = f"stages of equal size: {left} of the {model.layers} layers of {model.where} are left for {others}"
        if given:
            expected += f" beside {' and '.join(f'{key}={size}' for key, size in given.items())}"
        yield Fault(_PIPELINE, tree.pipeline, expected, f"Change it or {' and '.join(_ENDS)}")


def _divides(layers: int, stages: int, given: list[int]) -> bool:
    """Whether the layers that no given stage takes fill the other stages evenly."""
    layers, stages = layers - sum(given), stages - len(given)
    if layers <= 0 or stages <= 0:
        return layers == stages == 0
    return layers % stages == 0


def _tensor(tree: Tree, model: ModelConfig) -> Iterator[Fault]:
    """Of the trainer and the sampler."""
    shared = {"attention heads": model.heads, "columns of the MLP": model.mlp_width if model.experts == 0 else None}
    if tree.uses_megatron:
        # Megatron could pad the vocabulary, but NeMo RL does not tell it to.
        parts = shared | {"words of the vocabulary": model.vocabulary}
        parts |= {f"{kind} of linear attention": number for kind, number in model.linear_heads.items()}
        yield from _indivisible(tree.tensor_key, tree.tensor, parts, model, model.key_heads)
    else:
        parts = {"attention heads": model.heads, "key-value heads": model.key_heads}
        yield from _indivisible(tree.tensor_key, tree.tensor, parts, model)
    key = f"{VLLM}.tensor_parallel_size"
    yield from _indivisible(key, tree.size(key), shared, model, model.key_heads)


def _indivisible(
    key: str, size: int, parts: dict[str, int | None], model: ModelConfig, groups: int | None = None
) -> Iterator[Fault]:
    """GPUs take equal shares of `parts`, and each one whole key-value heads (`groups`) or a copy of one."""
    wrong = [f"{number} {name}" for name, number in parts.items() if number and number % size]
    expected = f"a divisor of the {' and the '.join(wrong)}"
    if not wrong and groups and groups % size and size % groups:
        expected = f"a divisor or a multiple of the {groups} key-value heads"
    elif not wrong:
        return
    yield Fault(key, size, f"{expected} of {model.where}", f"Lower {key}; 1 always divides")


def _experts(tree: Tree, model: ModelConfig) -> Iterator[Fault]:
    trainer, sampler = f"{MEGATRON}.expert_model_parallel_size", f"{VLLM}.expert_parallel_size"
    if model.experts and tree["aopsd.scoring"] == "sampler":
        why = f"experts are chosen differently in decoding and in a prefill, and {model.where} has {model.experts}"
        yield must_be(tree, "aopsd.scoring", "prefill", why, "aopsd.scoring=trainer")
    for key in (trainer, sampler) if tree.uses_megatron else (sampler,):
        size = tree.size(key)
        if size > 1 and model.experts == 0:
            yield must_be(tree, key, 1, f"the model has no experts, by {model.where}")
        elif key == trainer and model.experts and model.experts % size:
            expected = f"a divisor of the {model.experts} experts of {model.where}"
            yield Fault(key, size, expected, f"Set {key} to a power of two that divides them, or to 1")


MODEL_RULES: tuple[Callable[[Tree, ModelConfig], Iterator[Fault]], ...] = (_stages, _tensor, _experts)
