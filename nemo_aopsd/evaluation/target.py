"""What is evaluated: a run (its newest checkpoint), one checkpoint, or a model as it comes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from nemo_aopsd import checkpoint, run_folder
from nemo_aopsd.config import AOPSDConfig, Config, TeacherConfig, ThinkingConfig
from nemo_aopsd.config_files import load_config
from nemo_aopsd.errors import UserError

_MARGIN = 1 << 20  # bytes read from either end of a file of weights
_NO_LIMIT = 1 << 20  # tokens, for a model that names no longest sequence


@dataclass(frozen=True, slots=True)
class Target:
    """`weights` identifies them in settings; `checkpoint` is None for a bare model. Results go below `folder`."""

    name: str
    config: Config
    checkpoint: Path | None
    weights: str
    folder: Path


def find_target(path: Path, config: Path | None = None) -> Target:
    """The target at `path`; a checkpoint outside its run needs the run's `config`. Raises UserError if it is none."""
    if (path / "config.yaml").is_file():
        settings = run_folder.load_run_config(path)
        newest = checkpoint.newest(Path(settings.checkpointing["checkpoint_dir"]))
        if newest is None:
            raise UserError(
                f"{path}: no checkpoint yet. Train with checkpointing.enabled=true, or wait for the first one."
            )
        return _checkpoint(newest, settings, path)
    if (path / "state.json").is_file():
        run = path.absolute().parents[1]
        if config is None and not (run / "config.yaml").is_file():
            raise UserError(f"{path}: a checkpoint without its run ({run} has no config.yaml). Pass --config RUN.yaml.")
        return _checkpoint(path, load_config(config) if config else run_folder.load_run_config(run), run)
    if path.suffix == ".gguf" or (path / "config.json").is_file():
        return Target(path.name, _bare_config(path), None, f"{path.name} {_fingerprint(path)}", Path("evaluations"))
    raise UserError(
        f"{path}: no run in it (config.yaml), no checkpoint (state.json) and no model (config.json, or a .gguf file). "
        "Check the path."
    )


def with_prompts(target: Target, prompts: str | None, thinking: bool | None) -> Target:
    """The target asked in another way: a family of prompts, `enable_thinking` of the chat template."""
    aopsd = target.config.aopsd
    student = aopsd.thinking.student if thinking is None else thinking
    aopsd = replace(aopsd, prompts=prompts or aopsd.prompts, thinking=ThinkingConfig(student, aopsd.thinking.teacher))
    return replace(target, config=replace(target.config, aopsd=aopsd))


def _checkpoint(path: Path, config: Config, run: Path) -> Target:
    identity = hashlib.sha256((path / "state.json").read_bytes()).hexdigest()[:12]
    return Target(path.absolute().name, config, path, f"{path.absolute().name} {identity}", run / "eval")


def _bare_config(path: Path) -> Config:
    """A config for engines; the optimizer in it is never built."""
    policy = {
        "model_name": str(path),
        "max_total_sequence_length": _longest_sequence(path),
        "optimizer": {"kwargs": {"lr": 0.0}},
        "generation": {"max_new_tokens": 1},
    }
    aopsd = AOPSDConfig(teacher=TeacherConfig(weights="live"))
    return Config(aopsd=aopsd, policy=policy, data={}, logger={}, checkpointing={}, raw={})


def _longest_sequence(path: Path) -> int:
    """Tokens of prompt and response that the model was made for, as its `config.json` says."""
    if path.suffix == ".gguf":
        return _NO_LIMIT
    try:
        content = json.loads((path / "config.json").read_text(encoding="utf-8"))
        content = content.get("text_config") or content
        longest = content.get("max_position_embeddings") or _NO_LIMIT
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path / 'config.json'}: no JSON object: {error}. Download the model again.") from error
    return int(longest)


def _fingerprint(path: Path) -> str:
    """SHA-256 over names, sizes and both ends of the weights: training moves every tensor, so the ends tell."""
    files = [path] if path.is_file() else sorted([*path.glob("*.safetensors"), *path.glob("*.bin")])
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_MARGIN))
            stream.seek(max(0, size - _MARGIN))
            digest.update(stream.read())
    return digest.hexdigest()[:12]
