"""The run folder: is it free, may a config go on in it, and how to remove a run without touching anything else."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from nemo_aopsd.config import Config
from nemo_aopsd.config_files import flatten, load_config
from nemo_aopsd.errors import UserError

# What may differ when a run goes on: how long it is, what is kept, and how work is cut into batches.
_MAY_CHANGE = (
    *("aopsd.max_num_epochs", "aopsd.max_num_steps"),
    *("checkpointing.enabled", "checkpointing.save_period", "checkpointing.keep_top_k"),
    *("policy.generation_batch_size", "policy.logprob_batch_size", "policy.train_micro_batch_size"),
)
_FILES = ("metrics.jsonl", "competence.jsonl", "initial_progress.jsonl", "report.html", "config.yaml")
_FOLDERS = {
    "rollouts": re.compile(r"\.?step_\d+\.jsonl(\.partial)?"),
    "eval": re.compile(r"\.?epoch_\d+(\.settings)?\.jsonl?(\.partial)?"),
    "checkpoints": re.compile(r"\.?step_\d+(\.partial)?"),
}


def check_free(run: Path) -> None:
    """Raise UserError if `run` holds a run already, is no folder, or cannot be written."""
    if (run / "config.yaml").exists():
        raise UserError(f"{run} already holds a run. Go on with `--resume {run}`, or choose another logger.log_dir.")
    check_writable(run)


def check_writable(run: Path) -> None:
    """Raise UserError unless the folder, or the nearest one above it that exists, can be written."""
    existing = next(path for path in (run, *run.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{existing}: not a folder that can be written. Choose another logger.log_dir.")


def check_resumable(run: Path, config: Config) -> None:
    """Raise UserError unless `run` holds a run of this very config, but for a few keys that may change."""
    before, now = flatten(load_run_config(run).raw), flatten(config.raw)
    for leaves in (before, now):  # the same place, from wherever it is named
        folder = leaves.pop("logger.log_dir")
        leaves["checkpointing.checkpoint_dir"] = os.path.relpath(leaves["checkpointing.checkpoint_dir"], folder)
    changed = [key for key in sorted(before | now) if key not in _MAY_CHANGE and before.get(key) != now.get(key)]
    if changed:
        listed = "\n".join(f"  {key}: {before.get(key)!r} -> {now.get(key)!r}" for key in changed)
        raise UserError(
            f"{run / 'config.yaml'}: the run was started with other settings:\n{listed}\n"
            "Restore them (repeat the overrides of the first command), or start a new run in another logger.log_dir."
        )


def load_run_config(run: Path) -> Config:
    """The config of an existing run. Raises UserError if there is none."""
    path = run / "config.yaml"
    if not path.is_file():
        raise UserError(f"{run}: no run in it (no config.yaml). Check the path of the run folder.")
    return load_config(path)


def remove_run(run: Path) -> None:
    """Delete the files that a run wrote, by name. Raises UserError if the folder holds other things but no run."""
    if not run.exists() or (run.is_dir() and not any(run.iterdir())):
        return
    load_run_config(run)
    for name, ours in _FOLDERS.items():
        folder = run / name
        if folder.is_symlink() or not folder.is_dir():
            continue
        for path in folder.iterdir():
            if ours.fullmatch(path.name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
    for name in _FILES:  # config.yaml last: an interrupted removal can be taken up again
        (run / name).unlink(missing_ok=True)
