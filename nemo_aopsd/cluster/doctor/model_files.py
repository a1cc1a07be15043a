"""The config's model: its `config.json` and its tokenizer, from a folder, the Hugging Face cache, or at last the hub.

Only small files are fetched, never weights. The hub is asked once and not again: where there is no network,
huggingface_hub's own retries take half a minute a file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, cast

from nemo_aopsd.cluster.doctor.result import ERROR, OK, WARN, Check
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.config_json import FILE, ModelConfig, find_model_config, read_model_config
from nemo_aopsd.models.hub_cache import find_cached

if TYPE_CHECKING:
    from nemo_aopsd.models.tokenizer import HFTokenizer

_FETCH = "Check the name; or fetch it where there is a network, hf download {name}, and set HF_HOME to the same cache"
_CHECK_PATH = "Check the path, or name a model of the hub: owner/name"
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
_SECONDS = 10  # for the hub's answer


class ModelFilesError(UserError):
    """What was `found`, and the `remedy`; texts without a full stop, as in a `Check`."""

    def __init__(self, found: str, remedy: str):
        super().__init__(f"{found}. {remedy}.")
        self.found, self.remedy = found, remedy


def is_gguf(name: str) -> bool:
    return name.endswith(".gguf")


def read_config(name: str) -> ModelConfig:
    """`config.json` of a model directory or hub id. Raises UserError where it cannot be had or read."""
    return (None if Path(name).is_dir() else find_model_config(name)) or read_model_config(_place(name))


def _place(name: str) -> Path:
    if not Path(name).is_dir():
        return _from_hub(name, FILE)
    if not (path := Path(name) / FILE).is_file():
        raise ModelFilesError(f"{path}: no such file", "A model directory has a config.json; download it again")
    return path


def _from_hub(name: str, file: str) -> Path:
    """Raises ModelFilesError unless the hub has `file` of the model; the first answer decides."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not _HUB_NAME.fullmatch(name):
        raise ModelFilesError(f"{name}: no such folder (looked from {Path.cwd()}), and no owner/name", _CHECK_PATH)
    of_client = cast("type[Exception]", HfHubHTTPError.__bases__[0])  # httpx's, or httpx2's
    try:
        get_hf_file_metadata(hf_hub_url(name, file), timeout=_SECONDS)
        return Path(hf_hub_download(name, file))
    except (of_client, HFValidationError, OSError) as error:
        cause = f"{type(error).__name__}: {_first_line(error)}"
        raise ModelFilesError(
            f"{name}: no such folder, not in the cache, and the hub, asked once for {file}, did not give it: {cause}",
            _FETCH.format(name=name),
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def check_model(name: str) -> tuple[Check, ModelConfig | None]:
    if is_gguf(name):
        there = Path(name).is_file()
        remedy = "" if there else "Check policy.model_name"
        return Check("model", OK if there else ERROR, name if there else f"{name}: not there", "a file", remedy), None
    try:
        config = read_config(name)
    except ModelFilesError as error:
        return Check("model", ERROR, error.found, "a folder or a model of the hub", error.remedy), None
    except UserError as error:
        remedy = "A model directory has a config.json; download it again"
        return Check("model", ERROR, str(error), "a folder or a model of the hub", remedy), None
    return Check("model", OK, f"{name}: {config.model_type}", "a folder or a model of the hub"), config


def check_tokenizer(name: str, thinking: tuple[bool | None, ...]) -> Check:
    """Load it, and render a question with each setting of `enable_thinking` that the config uses."""
    expected = "a tokenizer with a chat template that renders a question"
    if is_gguf(name):
        return Check("tokenizer", OK, f"{name}: inside the file, read when the model is", expected)
    try:
        tokenizer = _load_tokenizer(name)
        lengths = {len(tokenizer.render([{"role": "user", "content": "What is 1 + 1?"}], value)) for value in thinking}
    except ModelFilesError as error:
        return Check("tokenizer", ERROR, error.found, expected, error.remedy)
    except (UserError, OSError, ValueError, TypeError) as error:
        return Check("tokenizer", ERROR, _first_line(error), expected, _FETCH.format(name=name))
    except Exception as error:  # a template's own error is jinja2's, or whatever it calls
        remedy = "Mend chat_template.jinja, or name another policy.tokenizer.name"
        return Check("tokenizer", ERROR, f"{type(error).__name__}: {error}", expected, remedy)
    if 0 in lengths:
        return Check("tokenizer", WARN, f"{name}: an empty prompt", expected, "Mend its chat template")
    return Check("tokenizer", OK, f"{name}: a question is {' or '.join(map(str, sorted(lengths)))} tokens", expected)


def _load_tokenizer(name: str) -> HFTokenizer:
    from transformers import AutoTokenizer

    from nemo_aopsd.models.tokenizer import HFTokenizer

    file = "tokenizer_config.json"
    is_here = Path(name).is_dir() or find_cached(name, file) is not None
    if not is_here:
        _from_hub(name, file)  # says why not; the rest is then transformers' to fetch
    return HFTokenizer(AutoTokenizer.from_pretrained(name, local_files_only=is_here), ())
