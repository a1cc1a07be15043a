"""vLLM without a trainer, to sample from a finished model: one process per GPU, each with a full copy.

For models that fit one GPU. Each response has a seed of its own, but vLLM batches as it likes, and sums in another
order give other last bits: the same seed gives the same ids only where vLLM is made batch-invariant.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError

if TYPE_CHECKING:
    from nemo_aopsd.engines.vllm_only.model import VLLMModel
    from nemo_aopsd.models.tokenizer import HFTokenizer


def open_model(config: Config, memory_share: float) -> tuple[VLLMModel, HFTokenizer]:
    """A model on every visible GPU, of which it takes `memory_share`, started when it is first asked; its tokenizer.

    Raises UserError without vLLM, a GPU or a usable model directory.
    """
    if importlib.util.find_spec("vllm") is None:
        raise UserError("--engine vllm: vLLM is not installed. Run: pip install 'vllm==0.20.0', or leave --engine out.")
    from nemo_aopsd.engines.vllm_only.model import VLLMModel, visible_gpus

    path = Path(config.policy["model_name"])
    tokenizer = load_tokenizer(path)
    return VLLMModel(path, visible_gpus(), config.max_row_tokens, sorted(tokenizer.end_ids), memory_share), tokenizer


def load_tokenizer(path: Path) -> HFTokenizer:
    """The tokenizer with the model's end tokens. Raises UserError if there is none."""
    from nemo_aopsd.models.tokenizer import HFTokenizer, generation_end_ids, open_tokenizer

    return HFTokenizer(open_tokenizer(path), generation_end_ids(str(path)))
