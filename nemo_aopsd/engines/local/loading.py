"""From a path to a model and a tokenizer."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from nemo_aopsd.engines.local.kv import KVBuffer
from nemo_aopsd.engines.local.memory import BYTES, gpu_memory
from nemo_aopsd.engines.local.network import Network
from nemo_aopsd.engines.local.settings import Settings
from nemo_aopsd.errors import UserError, first_line
from nemo_aopsd.models.limits import check_vocabulary
from nemo_aopsd.models.tokenizer import UNREADABLE, HFTokenizer, as_list, where_from


@gpu_memory("loading a model", BYTES)
def load_model(settings: Settings) -> PreTrainedModel:
    """The causal language model on this machine's device, in evaluation mode. Raises UserError if it is unfit."""
    disable_progress_bar()  # transformers would draw its own bars between ours
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            **where_from(settings.model), dtype=getattr(torch, settings.precision), attn_implementation="sdpa"
        )
    except (*UNREADABLE, SafetensorError) as error:
        what = f"no causal language model, or cut or damaged: {first_line(error)}"
        raise UserError(f"{_to_blame(settings.model)}: {what}. Check the path, or copy the model again.") from error
    quantizer = getattr(model, "hf_quantizer", None)
    if settings.model.suffix == ".gguf" and quantizer is not None:
        quantizer.remove_quantization_config(model)  # the weights are dense now; with it the model could not be saved
    torch.backends.cuda.enable_cudnn_sdp(False)  # plans 70 ms for every shape, and keeps all; but see ATTENTION
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    _refuse_unfit(model, settings.model)
    return model


def _to_blame(model: Path) -> Path:
    """The first file of weights that cannot be opened; the model itself if there is none."""
    for file in sorted(model.glob("*.safetensors")):
        try:
            with safe_open(file, "pt"):
                pass
        except (SafetensorError, OSError):
            return file
    return model


def wrap_tokenizer(tokenizer: Any, model: PreTrainedModel) -> HFTokenizer:
    """The tokenizer with the model's end tokens. Raises UserError if it has more tokens than the model."""
    embeddings: Any = model.get_input_embeddings()
    check_vocabulary(len(tokenizer), embeddings.num_embeddings, tokenizer.name_or_path)
    return HFTokenizer(tokenizer, as_list(model.generation_config.eos_token_id))


@torch.no_grad()
def _refuse_unfit(model: PreTrainedModel, path: Path) -> None:
    """Probes need full attention, and log-probs need logits that are the output head on the last hidden state."""

    def unfit(why: str) -> UserError:
        return UserError(
            f"{path}: {type(model).__name__} {why}. Choose another model, such as Llama or Qwen, for the local engine."
        )

    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    has_window = getattr(config, "layer_types", None) is None and getattr(config, "sliding_window", None)
    if kinds != {"full_attention"} or has_window:
        raise unfit(f"has a sliding window or other layers than full attention ({', '.join(sorted(kinds))})")
    ids = torch.tensor([[0, 1, 2]], device=model.device)
    try:
        network = Network(model)  # first, for it may fuse norms, and in bfloat16 they round once less
        expected = model(input_ids=ids).logits
        (hidden,), _ = network.prefill(ids.tolist())
        found = network.head(_decoded(network, ids))
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        what = "lacks rotary positions, plain attention or transformers' usual arguments"
        raise unfit(f"{what} ({first_line(error)})") from error
    if not torch.allclose(network.head(hidden), expected[0], atol=1e-3, rtol=1e-2):
        raise unfit("changes the logits of its output head")
    if (found - expected[:, -1:]).abs().max() > 0.05 * expected.abs().max():
        raise unfit("gives different logits with a key-value cache than without one")


def _decoded(network: Network, ids: Tensor) -> Tensor:
    """The hidden state [1, 1, H] of the last of `ids` [1, S], behind keys and values of those before it."""
    last = ids.shape[1] - 1
    _, prefix = network.prefill(ids[:, :-1].tolist(), keep_kv=True)
    kv = KVBuffer(prefix, ids.new_zeros(1), columns=last, room=1)
    mask = network.additive(torch.ones(1, 1, 1, last + 1, dtype=torch.bool, device=ids.device))
    return network.extend(ids[:, -1:], mask, ids.new_full((1, 1), last), kv)
