"""The model's `config.json` and tokenizer, in a folder or the Hugging Face cache. Nothing is fetched."""

from __future__ import annotations

from pathlib import Path

from nemo_aopsd.cluster.doctor.result import ERROR, OK, WARN, Check, judge
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.config_json import ModelConfig, find_model_config
from nemo_aopsd.models.hub_cache import find_cached
from nemo_aopsd.models.published import find_published

_EXPECTED = "a model directory, a GGUF file, or a model of the hub"


def check_model(name: str) -> tuple[Check, ModelConfig | None]:
    """The finding, and what is known of the model: of a published one also before it is downloaded."""
    if name.endswith(".gguf"):
        return _missing("model", name) if not Path(name).is_file() else Check("model", OK, name, _EXPECTED), None
    try:
        config = find_model_config(name)
    except UserError as error:
        return Check("model", ERROR, str(error), _EXPECTED, "Download the model again"), None
    if config:
        return Check("model", OK, f"{name}: {config.model_type}", _EXPECTED), config
    return _missing("model", name), find_published(name)


def check_tokenizer(name: str) -> Check:
    """A GGUF file has its tokenizer inside."""
    file = "tokenizer_config.json"
    is_here = Path(name, file).is_file() or Path(name).is_file() or find_cached(name, file)
    return Check("tokenizer", OK, name, _EXPECTED) if is_here else _missing("tokenizer", name)


def _missing(check: str, name: str) -> Check:
    """Only a name spelt owner/name can still be fetched when the run starts."""
    could_be_fetched = name.count("/") == 1 and name[0].isalnum() and not Path(name).exists()
    remedy = "Check the path, or name a model of the hub: owner/name"
    if could_be_fetched:
        remedy = f"Check the name; or, where there is a network, hf download {name}, with HF_HOME set to the same cache"
    found = f"{name}: neither in the cache nor a folder or file that has it (looked from {Path.cwd()})"
    return judge(check, WARN if could_be_fetched else ERROR, found, _EXPECTED, remedy)
