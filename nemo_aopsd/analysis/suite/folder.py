"""What OUT holds, and whether a suite may resume in it.

suite.json                     settings of each member, fingerprints of problems and models, to notice a change
NAME/config.yaml               the member's config: `aopsd train` takes it
NAME/seed_0/                   a run folder
NAME/seed_0.log                all that its processes said, the last one at the end
NAME/seed_0.finished.json      there once the run is complete
results.md, results.csv, results.svg
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nemo_aopsd.analysis.suite.spec import Suite
from nemo_aopsd.config.load import flatten, load_config
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_write, read_json
from nemo_aopsd.manifest import Manifest
from nemo_aopsd.models.fingerprint import fingerprint_model
from nemo_aopsd.run import layout
from nemo_aopsd.run.folder import SUITE, is_suite, path_override, settings_text
from nemo_aopsd.run.own_files import check_extensions

# Of a run, not of its member.
_PLACES = ("aopsd.seed", "logger.log_dir", "checkpointing.checkpoint_dir")
# What the evaluation of the untrained model depends on, besides the seed and the problems.
_EVALUATION = ("aopsd.engine", "aopsd.prompts", "aopsd.thinking.student", "aopsd.evaluation.", "policy.")
_UPDATE_ONLY = (
    *("policy.optimizer.", "policy.max_grad_norm"),
    *("policy.train_micro_batch_size", "policy.dynamic_batching.train_mb_tokens"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One member with one seed."""

    member: str
    seed: int
    out: Path

    @property
    def label(self) -> str:
        return f"{self.member}/seed_{self.seed}"

    @property
    def folder(self) -> Path:
        return self.out / self.member / f"seed_{self.seed}"

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"seed_{self.seed}.log")

    @property
    def config_file(self) -> Path:
        return self.folder.with_name("config.yaml")

    @property
    def finished_file(self) -> Path:
        return self.folder.with_name(f"seed_{self.seed}.finished.json")

    @property
    def is_finished(self) -> bool:
        return self.finished_file.is_file()

    @property
    def is_begun(self) -> bool:
        return (self.folder / layout.CONFIG).is_file()

    @property
    def overrides(self) -> list[str]:
        """What makes the member's config that of the run."""
        return [path_override("logger.log_dir", self.folder), f"aopsd.seed={self.seed}"]

    def arguments(self) -> list[str]:
        """Of the `aopsd` command; a run that has begun resumes."""
        resume = ["--resume", str(self.folder)] if self.is_begun else []
        return ["train", str(self.config_file), *self.overrides, *resume]

    def config(self) -> Config:
        """Read anew from the member's file. Raises UserError."""
        return load_config(self.config_file, self.overrides)


def write_configs(suite: Suite, out: Path) -> None:
    """The config file of each member under `out`."""
    shared = out / "shared.yaml"
    _write_yaml(shared, [suite.config], suite.settings)
    for member in suite.members:
        _write_yaml(Run(member.name, 0, out).config_file, [Path("..") / shared.name, member.file], member.settings)


def load_configs(suite: Suite, out: Path) -> dict[str, Config]:
    """What those files say, by member. Raises UserError, with the member's name, if one is wrong."""
    configs = {}
    for member in suite.members:
        try:
            configs[member.name] = Run(member.name, 0, out).config()
        except UserError as error:
            raise blame(suite, member.name, out, error) from error
    return configs


def blame(suite: Suite, member: str, out: Path, error: UserError) -> UserError:
    """The error of a member: the user corrects the suite, not the files under `out`, which may be gone by now."""
    text = re.sub(rf"{re.escape(str(out))}\S*?\.yaml:(\d+:)? ?", "", str(error))
    return UserError(f"{suite.path}: member `{member}`: {text}")


def _write_yaml(path: Path, parents: Sequence[Path], settings: Mapping[str, Any]) -> None:
    tree = {"defaults": [str(parent) for parent in parents], **settings}
    atomic_write(path, OmegaConf.to_yaml(OmegaConf.create(tree)))


def check_unchanged(out: Path, configs: Mapping[str, Config], problems: Mapping[str, str]) -> list[str]:
    """Raise UserError if runs in `out` were made with other settings, problems or weights; lines on what else is new.

    `problems` are fingerprints by the names of their files.
    """
    if not is_suite(out):
        return []
    for name, config in configs.items():
        _check_extensions(out, name, config)
    before, now = _read_suite(out), {name: _leaves(config) for name, config in configs.items()}
    members = before["members"].items()
    kept = {name: leaves for name, leaves in members if any((out / name).glob(f"seed_*/{layout.CONFIG}"))}
    changes = [
        f"  {name}: {key}: {kept[name].get(key)!r} -> {now[name].get(key)!r}"
        for name in kept.keys() & now.keys()
        for key in _changed(kept[name], now[name])
    ]
    if kept:
        changes += [f"  the problems in {file}" for file in problems if problems[file] != before["problems"].get(file)]
        changes += [f"  the model in {model}" for model in _changed_models(before, _models(configs.values()))]
    if changes:
        told = f"{out}: the runs there were made with other settings, problems or weights:"
        remedy = "Restore them, choose another --out, or delete the folders of members that changed to run them anew."
        raise UserError("\n".join([told, *sorted(changes), remedy]))
    new, gone = sorted(now.keys() - before["members"].keys()), sorted(kept.keys() - now.keys())
    lines = [f"new since the last time: {', '.join(new)}"] if new else []
    told = f"no longer in the suite: {', '.join(gone)}; their runs stay, the table leaves them out"
    return lines + ([told] if gone else [])


def remember(out: Path, configs: Mapping[str, Config], problems: Mapping[str, str]) -> None:
    """Write what `check_unchanged` will compare with; members of earlier calls are kept in it."""
    before = _read_suite(out)["members"] if is_suite(out) else {}
    members = before | {name: _leaves(config) for name, config in configs.items()}
    content = {"members": members, "problems": dict(problems), "models": _models(configs.values())}
    atomic_write(out / SUITE, json.dumps(content, indent=1) + "\n")


def current_config(run: Run) -> Config:
    """Of a run about to start. Raises UserError if a file that makes it has changed since the suite was started."""
    config = run.config()
    if changed := _changed(_remembered(run), _leaves(config)):
        raise UserError(f"not started: since the suite was started, its config has changed in {', '.join(changed)}")
    _check_extensions(run.out, run.member, config)
    if changed := _changed_models(_read_suite(run.out), _models([config])):
        raise UserError(f"not started: since the suite was started, the model in {changed[0]} has changed")
    return config


def share_evaluation(source: Run, target: Run, config: Config) -> bool:
    """Give `target`, not begun yet, the evaluation of the untrained model that `source` has made; False if it differs.

    A run with its config and that evaluation is one that stopped before its first step, and goes on from there.
    """
    summary, own = (layout.evaluation_file(run.folder, epoch=0) for run in (source, target))
    alike = _of_evaluation(_remembered(source)) == _of_evaluation(_leaves(config))
    if target.is_begun or not summary.is_file() or not alike:
        return False
    own.parent.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(target.folder)
    manifest.begin(target.folder / layout.CONFIG, settings_text(config))
    for suffix in (".settings.json", ".jsonl", ".json"):  # the summary says that all is there
        manifest.replace(own.with_suffix(suffix), summary.with_suffix(suffix).read_bytes())
    return True


def _leaves(config: Config) -> dict[str, Any]:
    return {key: value for key, value in flatten(config.raw).items() if key not in _PLACES}


def _check_extensions(out: Path, member: str, config: Config) -> None:
    """Raise UserError if a run of the member was made with other files of the user's own, classes or prompts."""
    for run in sorted((out / member).glob(f"seed_*/{layout.CONFIG}")):
        check_extensions(run.parent, config.aopsd, f"choose another --out, or delete {out / member}")


def _models(configs: Collection[Config]) -> dict[str, str | None]:
    """Fingerprints of students and judges by their paths, which may be links that lead elsewhere by now."""
    names = {str(each.policy["model_name"]) for each in configs}
    names |= {each.aopsd.judge.model for each in configs if each.aopsd.judge.has_own_model}
    return {name: fingerprint_model(name) for name in sorted(names)}


def _changed_models(suite: Mapping[str, Any], now: Mapping[str, str | None]) -> list[str]:
    """A suite.json without fingerprints of models, as there were, tells of no change."""
    before = suite.get("models", {})
    return [name for name in now if before.get(name, now[name]) != now[name]]


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [key for key in sorted({**before, **now}) if before.get(key) != now.get(key)]


def _remembered(run: Run) -> dict[str, Any]:
    return _read_suite(run.out)["members"][run.member]


def _read_suite(out: Path) -> dict[str, Any]:
    return read_json(out / SUITE, "members", "problems", remedy="Restore it, or choose another --out.")


def _of_evaluation(leaves: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in leaves.items() if k.startswith(_EVALUATION) and not k.startswith(_UPDATE_ONLY)}
