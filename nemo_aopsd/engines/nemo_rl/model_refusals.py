"""Sizes that do not fit the model. Only where its config.json can be read here: else NeMo RL finds out.

The rules are those of Megatron-core 0.19 (its core/transformer: transformer_config.py, transformer_block.py and
moe/moe_layer.py; core/tensor_parallel/layers.py), of NeMo RL v0.7.0's DTensor plans (models/dtensor/parallelize.py) and
of vLLM 0.20 (config/model.py, and the attention of its models).
"""

from __future__ import annotations

from collections.abc import Iterator

from nemo_aopsd.engines.nemo_rl.architecture import Architecture, UnreadableModel, find_architecture
from nemo_aopsd.engines.nemo_rl.config_tree import MEGATRON, VLLM, Tree, is_size
from nemo_aopsd.engines.nemo_rl.faults import Fault, Rule, must_be
from nemo_aopsd.models.limits import ROW

_FIRST, _LAST = (f"{MEGATRON}.num_layers_in_{end}_pipeline_stage" for end in ("first", "last"))
_PIPELINE = f"{MEGATRON}.pipeline_model_parallel_size"
# Megatron's other ways to cut a pipeline.
_NOT_HANDED_ON = tuple(
    f"{MEGATRON}.{name}"
    for name in (
        *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
        *("pipeline_model_parallel_layout", "virtual_pipeline_model_parallel_size"),
    )
)


def _model(tree: Tree) -> Architecture | None:
    """None as well where the file is broken, which `_readable` lists."""
    try:
        return find_architecture(str(tree["policy.model_name"]), tree["policy.hf_config_overrides"])
    except UnreadableModel:
        return None


def _readable(tree: Tree) -> Iterator[Fault]:
    name = tree["policy.model_name"]
    try:
        find_architecture(str(name), tree["policy.hf_config_overrides"])
    except UnreadableModel as error:
        yield Fault("policy.model_name", name, f"a config.json with one JSON object ({error})", "Download it again")


def _stages(tree: Tree) -> Iterator[Fault]:
    if not tree.uses_megatron:
        return
    for key in _NOT_HANDED_ON:
        if tree[key]:
            why = "NeMo RL v0.7.0 does not hand it to Megatron, which would cut the pipeline evenly all the same"
            yield must_be(tree, key, None, why, f"{_FIRST} or {_LAST}")
    wrong = [key for key in (_FIRST, _LAST) if tree[key] is not None and not is_size(tree[key])]
    for key in wrong:
        yield Fault(key, tree[key], "null, or a whole number of at least 1", f"Set {key}=null")
    model = _model(tree)
    if model is None or model.layers is None or wrong:
        return
    given = {key: tree[key] for key in (_FIRST, _LAST) if tree[key] is not None}
    if not _divides(model.layers, tree.pipeline, list(given.values())):
        yield _stages_fault(model, tree.pipeline, given)


def _divides(layers: int, stages: int, given: list[int]) -> bool:
    """Whether the layers that no given stage takes fill the other stages evenly."""
    layers, stages = layers - sum(given), stages - len(given)
    if layers <= 0 or stages <= 0:
        return layers == stages == 0
    return layers % stages == 0


def _stages_fault(model: Architecture, stages: int, given: dict[str, int]) -> Fault:
    if given:
        left, number = model.layers - sum(given.values()), stages - len(given)
        listed = " and ".join(f"{key}={size}" for key, size in given.items())
        expected = (
            f"stages of equal size beside {listed}: {left} of the {model.layers} layers of {model.where} "
            f"are left for {number} other stages"
        )
    else:
        expected = f"a divisor of the {model.layers} layers of {model.where}"
    divisors = ", ".join(str(each) for each in range(1, model.layers + 1) if model.layers % each == 0)
    remedy = f"Set it to one of {divisors}" + (" without these keys" if given else "")
    first = _best_first_stage(model.layers, stages)
    return Fault(_PIPELINE, stages, expected, f"{remedy}, or {_FIRST}={first}" if first else remedy)


def _best_first_stage(layers: int, stages: int) -> int | None:
    """Layers of a first stage behind which the others are equal, so that the largest is smallest; None if none is."""
    sizes = [first for first in range(1, layers) if _divides(layers, stages, [first])]
    return min(sizes, key=lambda first: (max(first, (layers - first) // (stages - 1)), -first), default=None)


def _tensor(tree: Tree) -> Iterator[Fault]:
    model = _model(tree)
    if model is None:
        return
    parts = {"attention heads": model.heads}
    if not tree.uses_megatron:
        yield from _indivisible(tree.tensor_key, tree.tensor, parts | {"key-value heads": model.key_value_heads}, model)
        return
    # Megatron could pad the vocabulary, but NeMo RL does not tell it to.
    parts |= {"words of the vocabulary": model.vocabulary, "columns of the MLP": model.mlp_width}
    parts |= {f"{kind} of linear attention": number for kind, number in model.linear_heads.items()}
    yield from _indivisible(tree.tensor_key, tree.tensor, parts, model, model.key_value_heads)


def _sampler_tensor(tree: Tree) -> Iterator[Fault]:
    model, key = _model(tree), f"{VLLM}.tensor_parallel_size"
    if model is not None:
        parts = {"attention heads": model.heads, "columns of the MLP": model.mlp_width}
        yield from _indivisible(key, tree.size(key), parts, model, model.key_value_heads)


def _indivisible(
    key: str, size: int, parts: dict[str, int | None], model: Architecture, groups: int | None = None
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


def _experts(tree: Tree) -> Iterator[Fault]:
    model = _model(tree)
    if model is None or model.experts is None:
        return
    keys = [f"{MEGATRON}.expert_model_parallel_size"] if tree.uses_megatron else []
    for key in (*keys, f"{VLLM}.expert_parallel_size"):
        size = tree.size(key)
        if size > 1 and model.experts == 0:
            yield must_be(tree, key, 1, f"the model has no experts, by {model.where}")
        elif key in keys and model.experts % size:
            expected = f"a divisor of the {model.experts} experts of {model.where}"
            yield Fault(key, size, expected, f"Set {key} to a power of two that divides them, or to 1")


def _row(tree: Tree) -> Iterator[Fault]:
    model = _model(tree)
    if model is not None and model.longest_row is not None and tree.size(ROW) > model.longest_row:
        expected = f"at most {model.longest_row}, the positions of {model.where}: vLLM refuses more"
        yield Fault(ROW, tree[ROW], expected, f"Set {ROW}={model.longest_row}")


MODEL_RULES: tuple[Rule, ...] = (_readable, _stages, _tensor, _sampler_tensor, _experts, _row)
