"""Our rules for cutting a model against Megatron-core's own, over all small cases."""

from itertools import product

import pytest

from nemo_aopsd.engines.nemo_rl.model_refusals import _divides, _indivisible
from nemo_aopsd.models.config_json import ModelConfig

transformer = pytest.importorskip("megatron.core.transformer", exc_type=(ImportError, OSError))


def megatron_cuts(layers, stages, first, last):
    """Layers of each stage; None where Megatron refuses."""
    import torch
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    try:
        config = transformer.TransformerConfig(
            num_layers=layers,
            hidden_size=8,
            num_attention_heads=4,
            pipeline_model_parallel_size=stages,
            pipeline_dtype=torch.bfloat16,
            num_layers_in_first_pipeline_stage=first,
            num_layers_in_last_pipeline_stage=last,
        )
        return [get_num_layers_to_build(config, None, stage) for stage in range(stages)]
    except (ValueError, AssertionError):
        return None


@pytest.mark.filterwarnings("ignore")
def test_pipeline_stages():
    for layers, stages, first, last in product(range(1, 8), range(2, 5), (None, 1, 2, 3), (None, 1, 2)):
        given = [size for size in (first, last) if size is not None]
        cuts = megatron_cuts(layers, stages, first, last)
        if cuts is not None and min(cuts) < 0:
            continue  # more layers in the given stages than there are: Megatron goes on with a negative number
        assert _divides(layers, stages, given) == (cuts is not None), (layers, stages, first, last, cuts)


@pytest.mark.filterwarnings("ignore")
def test_heads_and_their_groups():
    for heads, groups, size in product((4, 6, 8, 12), (1, 2, 3, 4, 6), (1, 2, 3, 4, 6, 8)):
        if heads % groups:
            continue
        model = ModelConfig("config.json", heads=heads, key_heads=groups)
        refused = list(_indivisible("tp", size, {"attention heads": heads}, model, groups))
        try:
            transformer.TransformerConfig(
                num_layers=1,
                hidden_size=24 * heads,
                num_attention_heads=heads,
                num_query_groups=groups,
                tensor_model_parallel_size=size,
            )
        except ValueError:
            assert refused, (heads, groups, size)
        else:
            assert not refused, (heads, groups, size)
