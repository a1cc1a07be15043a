"""What is evaluated: a run (its newest checkpoint), one checkpoint, or a plain model."""

import hashlib
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from nemo_aopsd.config.load import load_config, read_block
from nemo_aopsd.config.schema import AOPSDConfig, Config, TeacherConfig, ThinkingConfig
from nemo_aopsd.config.shipped import find_recipe
from nemo_aopsd.engine import Engine
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_write
from nemo_aopsd.models.config_json import read_model_config
from nemo_aopsd.models.fingerprint import fingerprint_ends
from nemo_aopsd.models.gguf import named_gguf, read_gguf
from nemo_aopsd.prompts import is_family
from nemo_aopsd.run import checkpoint, layout
from nemo_aopsd.run.folder import load_run_config, refuse_suite

_NO_LIMIT = 1 << 20  # tokens, for a model that names no longest sequence
# In an exported model: a config file with how its run asks it, and the prompts if they are no family of the package.
ASKED, _PROMPTS = "aopsd.yaml", "aopsd_prompts"


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
    if config is not None and not (path / "state.json").is_file():
        raise UserError(
            f"--config {config}: only a checkpoint outside its run needs one; {path} is none. Leave it out."
        )
    if (path / layout.CONFIG).is_file():
        of_run = load_run_config(path)
        newest = checkpoint.newest(Path(of_run.checkpointing["checkpoint_dir"]))
        if newest is None:
            remedy = "Train with checkpointing.enabled=true, or wait for the first one"
            if of_run.aopsd.max_num_steps == 0:  # it only evaluates
                remedy = f"The run takes no step: name its model, {of_run.policy['model_name']}"
            raise UserError(f"{path}: no checkpoint yet. {remedy}.")
        return _checkpoint(newest, of_run, path)
    if (path / "state.json").is_file():
        run = path.absolute().parents[1]
        if config is None and not (run / layout.CONFIG).is_file():
            raise UserError(f"{path}: a checkpoint without its run ({run} has no config.yaml). Pass --config RUN.yaml.")
        if config is None or (config.name == layout.CONFIG and (config.parent / layout.MANIFEST).is_file()):
            return _checkpoint(path, load_run_config(config.parent if config else run), run)
        return _checkpoint(path, load_config(find_recipe(config)), run)
    if path.suffix == ".gguf" or (path / "config.json").is_file():
        return Target(path.name, _bare_config(path), None, f"{path.name} {_fingerprint(path)}", Path("evaluations"))
    if not path.exists():
        raise UserError(f"{path}: no such file or folder (looked from {Path.cwd()}). Check the path.")
    refuse_suite(path)
    raise UserError(
        f"{path}: no run in it (config.yaml), no checkpoint (state.json) and no model (config.json, or a .gguf file). "
        f"{named_gguf(path) or 'Check the path.'}"
    )


def kept_checkpoints(run: Path) -> list[Path]:
    """Those of a run, from old to new. Raises UserError if it is no run or has none."""
    if not (run / layout.CONFIG).is_file():
        raise UserError(
            f"{run}: is no run (config.yaml), so there are no checkpoints to choose from. Give a run's folder."
        )
    find_target(run)
    return checkpoint.complete(Path(load_run_config(run).checkpointing["checkpoint_dir"]))


def with_prompts(target: Target, prompts: str | None, thinking: bool | None) -> Target:
    """The same target with other prompts or another `enable_thinking` of the chat template."""
    aopsd = target.config.aopsd
    student = aopsd.thinking.student if thinking is None else thinking
    aopsd = replace(aopsd, prompts=prompts or aopsd.prompts, thinking=ThinkingConfig(student, aopsd.thinking.teacher))
    return replace(target, config=replace(target.config, aopsd=aopsd))


def changes_of(before: AOPSDConfig, after: AOPSDConfig) -> str:
    """What of prompts and thinking `after` has otherwise than the student was trained with; empty if nothing."""
    asked = {"prompts": (before.prompts, after.prompts), "thinking": (before.thinking.student, after.thinking.student)}
    return ", ".join(f"{name} {new} instead of {old}" for name, (old, new) in asked.items() if new != old)


def write_asked(aopsd: AOPSDConfig, model: Path) -> None:
    """Note in a model's folder what its run asks it and how, so that `find_target` asks a copy in the same way."""
    asked: dict[str, Any] = {"thinking": asdict(aopsd.thinking), "evaluation": asdict(aopsd.evaluation)}
    if is_family(aopsd.prompts):
        asked = {"prompts": aopsd.prompts} | asked
    else:
        shutil.copytree(aopsd.prompts, model / _PROMPTS, ignore=_no_prompts)
    text = "# How the run of this model asks it; `aopsd evaluate` does the same.\n"
    atomic_write(model / ASKED, text + yaml.safe_dump({"aopsd": asked}, sort_keys=False))


def _no_prompts(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith((".txt", ".yaml"))]


def load(target: Target, engine: Engine) -> None:
    """Restore the engine from the target's checkpoint. Raises UserError if training has replaced it meanwhile."""
    path = target.checkpoint
    assert path is not None, f"{target.name}: a bare model has no checkpoint"
    try:
        checkpoint.load(path, engine)
    except (OSError, UserError) as error:
        if (path / "state.json").is_file():
            raise
        raise _replaced(path) from error


def _replaced(path: Path) -> UserError:
    return UserError(f"{path}: training replaced it by a newer checkpoint. Start the command again.")


def _checkpoint(path: Path, config: Config, run: Path) -> Target:
    try:
        manifest = path / checkpoint.MANIFEST  # the state of an earlier version has the checksums in it
        named = manifest if manifest.exists() else path / "state.json"
        identity = hashlib.sha256(named.read_bytes()).hexdigest()[:12]
    except FileNotFoundError as error:
        raise _replaced(path) from error
    judge = replace(config.aopsd.judge, model="student")  # nobody judges: no other model is loaded
    config = replace(config, aopsd=replace(config.aopsd, judge=judge))
    return Target(path.absolute().name, config, path, f"{path.absolute().name} {identity}", run / layout.EVALUATIONS)


def _bare_config(path: Path) -> Config:
    """A config for engines; the optimizer in it is never built."""
    is_gguf, remedy = path.suffix == ".gguf", ". Check it, or copy it again."
    model = read_gguf(path, remedy) if is_gguf else read_model_config(path / "config.json")
    policy = {
        "model_name": str(path),
        "max_total_sequence_length": model.positions or _NO_LIMIT,
        "optimizer": {"kwargs": {"lr": 0.0}},
        "generation": {"max_new_tokens": 1},
    }
    return Config(aopsd=_bare_settings(path), policy=policy, data={}, logger={}, checkpointing={}, raw={})


def _bare_settings(model: Path) -> AOPSDConfig:
    """As `write_asked` noted them; the defaults in a model of other origin."""
    asked = read_block(model / ASKED) if (model / ASKED).is_file() else AOPSDConfig()
    prompts = str(model / _PROMPTS) if (model / _PROMPTS).is_dir() else asked.prompts
    return replace(asked, prompts=prompts, teacher=TeacherConfig(weights="live"))


def _fingerprint(path: Path) -> str:
    files = [path] if path.is_file() else sorted([*path.glob("*.safetensors"), *path.glob("*.bin")])
    return fingerprint_ends(files)[:12]
