"""The engine for one machine: Hugging Face transformers on a CPU or one GPU, float32 or bfloat16.

Not covered: several devices, LoRA, sliding-window or linear attention, output heads with soft-capped or scaled logits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nemo_aopsd.config.schema import Config
from nemo_aopsd.config.unread import check_slips
from nemo_aopsd.console import slow, warn
from nemo_aopsd.engines.local.settings import Settings, read_settings
from nemo_aopsd.engines.local.trackers import Trackers, check_trackers
from nemo_aopsd.errors import tell_all
from nemo_aopsd.models.config_json import parse
from nemo_aopsd.models.limits import check_row, check_words

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from nemo_aopsd.engines.local.engine import LocalEngine
    from nemo_aopsd.engines.local.model import LocalModel
    from nemo_aopsd.models.tokenizer import HFTokenizer


def check(config: Config, *, elsewhere: bool = False) -> None:
    """All that can be checked without loading a model. Raises UserError; imports neither torch nor transformers.

    `elsewhere` leaves out this machine's packages: the run will be on another one.
    """
    tell_all(
        lambda: check_slips(config),
        lambda: read_settings(config),
        lambda: elsewhere or check_trackers(config.logger),
    )


def build(config: Config) -> LocalEngine:
    """Load model and tokenizer. Raises UserError on a setting or a model that this engine cannot take."""
    settings = read_settings(config)
    causal_lm, tokenizer = _load(config, settings)
    if settings.precision == "bfloat16" and causal_lm.device.type == "cpu":
        warn(["policy.precision=bfloat16 on a CPU: an update may take many times as long. Set it to float32"])
    from nemo_aopsd.engines.local.engine import LocalEngine

    of_judge = settings.judge and replace(settings, model=settings.judge, tokenizer=settings.judge)
    judge = open_model(config, of_judge) if of_judge else None
    return LocalEngine(causal_lm, tokenizer, settings, Trackers(config), judge)


def open_model(config: Config, settings: Settings | None = None) -> tuple[LocalModel, HFTokenizer]:
    """Model and tokenizer to sample from, without a teacher or an optimizer; `settings` are the config's unless given.

    Raises what `build` raises.
    """
    settings = settings or read_settings(config)
    causal_lm, tokenizer = _load(config, settings)
    from nemo_aopsd.engines.local.model import LocalModel

    return LocalModel(causal_lm, settings, tokenizer.end_ids), tokenizer


def _load(config: Config, settings: Settings) -> tuple[PreTrainedModel, HFTokenizer]:
    from nemo_aopsd.engines.local.loading import load_model, wrap_tokenizer
    from nemo_aopsd.models.tokenizer import open_tokenizer

    with slow(f"loading {settings.model}"):
        tokenizer = open_tokenizer(settings.tokenizer)
        causal_lm = load_model(settings)
    head: Any = causal_lm.get_output_embeddings()
    check_words(config, head.weight.shape[0], str(settings.model))
    check_row(config, parse(causal_lm.config.to_dict(), str(settings.model)))
    return causal_lm, wrap_tokenizer(tokenizer, causal_lm)
