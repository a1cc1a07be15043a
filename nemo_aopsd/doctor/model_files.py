"""The config's model: its `config.json` and its tokenizer, from a folder or the Hugging Face cache or hub.

Only small files are fetched, never weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nemo_aopsd.doctor.result import ERROR, OK, WARN, Check
from nemo_aopsd.errors import UserError

_FETCH = "Fetch it where there is a network: hf download {name}; then set HF_HOME to the same cache"


def is_gguf(name: str) -> bool:
    return name.endswith(".gguf")


def read_config(name: str) -> dict[str, Any]:
    """`config.json` of a model directory or hub id. Raises UserError where it cannot be had or read."""
    path = Path(name) / "config.json"
    if not Path(name).is_dir():
        path = _from_hub(name)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}. A model directory has a config.json; download the model again.") from error


def _from_hub(name: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(hf_hub_download(name, "config.json"))
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        cause = str(error).strip().splitlines()[0]
        raise UserError(f"{name}: neither a folder nor in the cache, and not fetched: {cause}") from error


def check_model(name: str) -> tuple[Check, dict[str, Any] | None]:
    if is_gguf(name):
        there = Path(name).is_file()
        remedy = "" if there else "Check policy.model_name"
        return Check("model", OK if there else ERROR, name if there else f"{name}: not there", "a file", remedy), None
    try:
        config = read_config(name)
    except UserError as error:
        return Check("model", ERROR, str(error), "a folder or a model of the hub", _FETCH.format(name=name)), None
    return Check("model", OK, f"{name}: {config.get('model_type')}", "a folder or a model of the hub"), config


def check_tokenizer(name: str, thinking: tuple[bool | None, ...]) -> Check:
    """Load it, and render a question with each setting of `enable_thinking` that the config uses."""
    expected = "a tokenizer with a chat template that renders a question"
    if is_gguf(name):
        return Check("tokenizer", OK, f"{name}: inside the file, read when the model is", expected)
    from transformers import AutoTokenizer

    from nemo_aopsd.hf_tokenizer import HFTokenizer

    try:
        tokenizer = HFTokenizer(AutoTokenizer.from_pretrained(name), ())
        lengths = {len(tokenizer.render([{"role": "user", "content": "What is 1 + 1?"}], value)) for value in thinking}
    except (UserError, OSError, ValueError, TypeError) as error:
        return Check("tokenizer", ERROR, str(error).strip().splitlines()[0], expected, _FETCH.format(name=name))
    except Exception as error:  # a template's own error is jinja2's, or whatever it calls
        remedy = "Mend chat_template.jinja, or name another policy.tokenizer.name"
        return Check("tokenizer", ERROR, f"{type(error).__name__}: {error}", expected, remedy)
    if 0 in lengths:
        return Check("tokenizer", WARN, f"{name}: an empty prompt", expected, "Mend its chat template")
    return Check("tokenizer", OK, f"{name}: a question is {' or '.join(map(str, sorted(lengths)))} tokens", expected)
