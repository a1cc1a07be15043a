"""Names of the files and folders of a run: all code that writes, reads or removes one takes its name from here.

Files inside `diagnostics` and `audit` are named where they are written; `place.py` says which a run moves aside.
"""

from pathlib import Path

from nemo_aopsd.evaluation import EPOCH
from nemo_aopsd.evaluation import RESULTS as RESULTS
from nemo_aopsd.manifest import NAME

MANIFEST = NAME  # a line for each change of the files that a resume trusts
CONFIG = "config.yaml"  # the resolved settings, below the command that made the run and those that resumed it
METRICS = "metrics.jsonl"  # a line a step
COMPETENCE = "competence.jsonl"  # a line before training, and one after each epoch
INITIAL_PROGRESS = "initial_progress.jsonl"  # a line a problem, from the attempts before epoch 1
REPORT = "report.html"
ROLLOUTS = "rollouts"  # folder: a file a step, a line a rollout
EVALUATIONS = "eval"  # folder: `epoch_NNN.*` of training, and a folder for each later `aopsd evaluate`
CHECKPOINTS = "checkpoints"  # folder: one a step, unless `checkpointing.checkpoint_dir` names another place
DIAGNOSTICS = "diagnostics"  # folder
EXTENSIONS = "extensions"  # folder: files of the user's own classes, and `prompts`: their own wording
AUDIT = "audit"  # folder
LABELS = "audit/labels"  # folder: a file a labeller


def rollout_file(run: Path, step: int) -> Path:
    """Where the rollouts of a step are kept."""
    return run / ROLLOUTS / f"step_{step:06d}.jsonl"


def rollout_files(run: Path) -> dict[int, Path]:
    """The files that are there, by step, in order."""
    return numbered(run / ROLLOUTS, "step_", ".jsonl")


def trusted_files(run: Path) -> list[Path]:
    """What a resume takes over, of a run that has no manifest."""
    journals = [run / name for name in (CONFIG, METRICS, COMPETENCE, INITIAL_PROGRESS)]
    return [*journals, *rollout_files(run).values(), *sorted((run / EVALUATIONS).glob("epoch_*.json*"))]


def evaluation_file(run: Path, epoch: int) -> Path:
    """The summary of the evaluation after so many epochs."""
    return run / EVALUATIONS / f"{EPOCH.format(epoch)}.json"


def evaluation_files(run: Path) -> dict[int, Path]:
    """The summaries that are there, by epoch, in order: those of finished evaluations."""
    return numbered(run / EVALUATIONS, "epoch_", ".json")


def teacher_folder(run: Path) -> Path:
    """Where `aopsd diagnose teacher` keeps a folder for each set of problems."""
    return run / DIAGNOSTICS / "teacher"


def numbered(folder: Path, prefix: str, suffix: str = "") -> dict[int, Path]:
    """Files or folders with a number in their name, by it, in order."""
    names = {path.name.removeprefix(prefix).removesuffix(suffix): path for path in folder.glob(f"{prefix}*{suffix}")}
    return dict(sorted((int(name), path) for name, path in names.items() if name.isdecimal()))
