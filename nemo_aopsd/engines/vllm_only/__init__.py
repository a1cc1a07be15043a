"""vLLM without a trainer, to sample from a finished model: one process a GPU, each with a whole copy of it.

For models that fit one GPU. Each response has a seed of its own, but vLLM batches as it likes, and sums in another
order give other last bits: the same seed gives the same ids only where vLLM is made batch-invariant.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nemo_aopsd.config.schema import Config

if TYPE_CHECKING:
    from nemo_aopsd.engines.vllm_only.model import VLLMModel
    from nemo_aopsd.models.tokenizer import HFTokenizer


def open_model(config: Config, memory_share: float) -> tuple[VLLMModel, HFTokenizer]:
    """A model on every visible GPU, of which it takes `memory_share`, started when it is first asked; its tokenizer.

    Raises UserError without vLLM, a GPU or a usable model directory.
    """
    from nemo_aopsd.engines.vllm_only.model import VLLMModel, check_installed, load_tokenizer, visible_gpus

    check_installed()
    path = Path(config.policy["model_name"])
    tokenizer = load_tokenizer(path)
    return VLLMModel(path, visible_gpus(), config.max_row_tokens, sorted(tokenizer.end_ids), memory_share), tokenizer
