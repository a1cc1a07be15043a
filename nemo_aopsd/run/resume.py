"""Whether and how a run goes on: with its own settings, problems, checkpoints and files, and below its limits."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nemo_aopsd.config.extension import own_names
from nemo_aopsd.config.load import flatten, load_config
from nemo_aopsd.config.schema import AOPSDConfig, Config
from nemo_aopsd.console import warn
from nemo_aopsd.data.problems import fingerprint, load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_journal, read_json
from nemo_aopsd.manifest import Manifest
from nemo_aopsd.prompts import is_family
from nemo_aopsd.run import checkpoint, layout
from nemo_aopsd.run.folder import load_run_config, require_run, to_go_on
from nemo_aopsd.run.own_files import check_extensions, is_kept, was_used

# What may differ when a run goes on: how long it is, what is kept, how work is cut into batches, and whether a row that
# is too long ends it: where one has, no step before had one, so `drop` from the start would have made the same steps.
_MAY_CHANGE = (
    *("aopsd.max_num_epochs", "aopsd.max_num_steps", "aopsd.max_response_tokens", "aopsd.max_train_seconds"),
    *("checkpointing.enabled", "checkpointing.save_period", "checkpointing.keep_top_k"),
    *("policy.generation_batch_size", "policy.logprob_batch_size", "policy.train_micro_batch_size"),
    *(f"policy.dynamic_batching.{key}" for key in ("enabled", "train_mb_tokens", "logprob_mb_tokens")),
    *("policy.enforce_eager", "aopsd.keep_optimizer_on_gpu", "aopsd.context.on_overlong"),
)
_PROBLEMS = {"data.train.data_path": "problems", "aopsd.evaluation.data_path": "held_out"}  # as a checkpoint calls them


def check_resumable(run: Path, config: Config) -> None:
    """Raise UserError unless `run` holds an undamaged run of this very config, but for a few keys that may change."""
    require_run(run)
    warn(Manifest(run).check(layout.trusted_files(run)))
    own, checkpoints = load_run_config(run), Path(config.checkpointing["checkpoint_dir"])
    before, now = flatten(own.raw), flatten(config.raw)
    for leaves in (before, now):  # the same place, from wherever it is named
        folder = leaves.pop("logger.log_dir")
        leaves["checkpointing.checkpoint_dir"] = os.path.relpath(leaves["checkpointing.checkpoint_dir"], folder)
    changed = [
        key for key in sorted(before | now) if key not in _MAY_CHANGE and not _is_same(before.get(key), now.get(key))
    ]
    changed = [key for key in changed if not is_kept(run, key, str(before.get(key)), str(now.get(key)))]
    changed = [key for key in changed if not _has_the_problems_of(checkpoints, key, str(now.get(key)))]
    if changed == ["checkpointing.checkpoint_dir"] and _is_checkpoint_of(run, checkpoints):
        changed = []  # they were moved
    if changed:
        listed = "\n".join(f"  {key}: {before.get(key)!r} -> {now.get(key)!r}" for key in changed)
        raise UserError(
            f"{run / layout.CONFIG}: the run was started with other settings:\n{listed}\n"
            f"Go on with its own ones, `{to_go_on(run)}`, or start a new run in another logger.log_dir."
        )
    _check_budget(run, config)
    if is_family(config.aopsd.prompts) or Path(config.aopsd.prompts).is_dir():
        check_extensions(run, config.aopsd)
    if own.checkpointing["enabled"] and not checkpoint.newest(checkpoints) and _has_saved(run, own):
        raise UserError(
            f"{checkpoints}: has no checkpoint (looked from {Path.cwd()}), but the run in {run} has made one. To go on "
            "without it would undo its steps. Name the folder that holds it: checkpointing.checkpoint_dir=FOLDER; or "
            "start a new run in another logger.log_dir."
        )


def _has_the_problems_of(checkpoints: Path, key: str, file: str) -> bool:
    """Whether the file, which had another name, holds the problems that the newest checkpoint was trained on."""
    trained_on = _newest_state(checkpoints).get(_PROBLEMS[key]) if key in _PROBLEMS else None
    return trained_on is not None and Path(file).is_file() and trained_on == fingerprint(load_problems(file))


def _is_checkpoint_of(run: Path, checkpoints: Path) -> bool:
    """Whether the newest one there is the run's: both tell how many seconds it had trained up to that step."""
    state, rows = _newest_state(checkpoints), read_journal(run / layout.METRICS, "step")
    return any(row["step"] == state.get("step") and row.get("time/total") == state.get("train_seconds") for row in rows)


def _newest_state(checkpoints: Path) -> dict[str, Any]:
    newest = checkpoint.newest(checkpoints)
    return read_json(newest / "state.json", remedy=f"Delete {newest}.") if newest else {}


def _has_saved(run: Path, config: Config) -> bool:
    """Whether a checkpoint was made for sure: one is before each evaluation but the first, and each period."""
    last = max((row["step"] for row in read_journal(run / layout.METRICS, "step")), default=0)
    return last > config.checkpointing["save_period"] or any(layout.evaluation_files(run))


def _is_same(before: Any, now: Any) -> bool:
    """Equal, or two names of one file or folder; a class's file is named before a colon."""
    if before == now or not (isinstance(before, str) and isinstance(now, str)):
        return before == now
    (old, _, its_class), (new, _, class_now) = before.partition(":"), now.partition(":")
    with suppress(OSError, ValueError):  # no file; or what no file can be called
        return its_class == class_now and os.path.samefile(old, new)
    return False


def _check_budget(run: Path, config: Config) -> None:
    """Raise UserError if the run has gone beyond what `config` allows: with it, the run would seem to be shorter.

    The step that reaches a limit is the last one. So the last step that was made must have begun below every limit.
    """
    done = read_journal(run / layout.METRICS, "step", "epoch")
    if not done:
        return
    last, before = done[-1], done[-2] if len(done) > 1 else {}
    for key, begun_at, reached in (
        ("max_num_steps", last["step"] - 1, last["step"]),
        ("max_num_epochs", last["epoch"], last["epoch"] + 1),
        ("max_response_tokens", before.get("rollout/total_tokens", 0), last.get("rollout/total_tokens")),
        ("max_train_seconds", before.get("time/total", 0), last.get("time/total")),
    ):
        limit = getattr(config.aopsd, key)
        if limit is not None and limit <= begun_at:
            raise UserError(
                f"{run}: the run is at step {last['step']}, in epoch {last['epoch'] + 1}; aopsd.{key}={limit} is less "
                f"than it has used. Set aopsd.{key}={reached} or more to go on."
            )


@contextmanager
def telling_what_is_lost(run: Path | None) -> Iterator[None]:
    """Where the resume of `run` is refused, the message also tells where what it lacks can be found."""
    try:
        yield
    except UserError as error:
        found = _lost(run) if run and (run / layout.CONFIG).is_file() else ""
        raise UserError("\n".join(filter(None, [str(error), found]))) from error


def _lost(run: Path) -> str:
    """How to go on with paths from another folder, or else without parts of the user's own that are gone or changed."""
    own = load_config(require_run(run), copies=run / layout.EXTENSIONS)
    before = flatten(own.raw)
    at, log_dir = Path(os.path.abspath(run)), Path(before["logger.log_dir"])
    if not log_dir.is_absolute() and at.parts[-len(log_dir.parts) :] == log_dir.parts:  # it was not moved
        begun = at.parents[len(log_dir.parts) - 1]
        paths = [str(before.get(key)) for key in (*_PROBLEMS, "policy.model_name")]
        if any(not Path(path).exists() and (begun / path).exists() for path in paths):
            return (
                f"The run was started in another folder. To go on: cd {shlex.quote(str(begun))} && {to_go_on(log_dir)}"
            )
    now = {"aopsd.prompts": load_run_config(run).aopsd.prompts}
    for key, name in own_names(own.aopsd).items():
        file, _, its_class = name.partition(":")
        copy = run / layout.EXTENSIONS / Path(file).name
        if copy.is_file() and not (Path(file).is_file() and Path(file).read_bytes() == copy.read_bytes()):
            now[f"aopsd.{key}"] = f"{copy}:{its_class}"
    copies = [f"{key}={value}" for key, value in now.items() if value != before[key]]
    return f"The run keeps what it began with. To go on with that: {to_go_on(run, *copies)}" if copies else ""


def after_failure(run: Path, aopsd: AOPSDConfig) -> str:
    """How to go on once what has ended the run is mended; a class that steps were made with must stay as it is."""
    used = [f"aopsd.{key}" for key in own_names(aopsd) if was_used(run, key)]
    kept = f"This run has used {', '.join(used)}: a changed class needs a new one, in another logger.log_dir. "
    return f"{kept if used else ''}To go on: {to_go_on(run)}"
