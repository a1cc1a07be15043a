"""Parts of your own, without a fork: a class in a file or module, named where the config names one of ours.

    aopsd:
      weighting: half_at_first.py:HalfAtFirst      # or my_package.weights:HalfAtFirst

What such a class has is said beside what it stands in for: `OwnWeighting`, `OwnContext` and `OwnJudge` in
method/weighting.py, context.py and judge.py; objectives and curricula are subclasses of ours. docs/extending.md has an
example of each. A file is looked for from the current folder, a module where Python looks.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from numbers import Real
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nemo_aopsd.console import warn
from nemo_aopsd.errors import UserError, first_line, nearest
from nemo_aopsd.types import Signal

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_aopsd.config.schema import AOPSDConfig

WANTED = {
    key: tuple(members.split())
    for key, members in {
        "weighting": "continues weigh",
        "context.kind": "field adaptive messages",
        "judge.kind": "judge",
        "curriculum.name": "needs_progress batches state_dict load_state_dict",
        "objective.name": "signal needs_old_logprobs needs_reward on_policy_rate prepare divergence __call__",
    }.items()
}
# What is taken of a class that cannot be imported: nothing, and of an objective what every config of a run allows.
_UNKNOWN: dict[str, Any] = {
    **{"continues": False, "field": None, "adaptive": False, "needs_progress": False},
    **{"signal": Signal(sampled=True), "needs_old_logprobs": True, "needs_reward": False, "on_policy_rate": 1.0},
}
_copies: dict[tuple[str, str], Path] = {}  # by key and place of a class: the file of it that a run keeps

_NOT_THEIRS = (str(Path(__file__).parents[1]), "<frozen ")  # this package, and what imports a module
_PREFIX = "aopsd_file_"  # of the modules that files become: no file hides another one, or a module of Python's


def is_own(name: str) -> bool:
    """Whether a config's value names a class instead of a part of ours."""
    return ":" in name


def own_names(aopsd: AOPSDConfig) -> dict[str, str]:
    """The names of classes in a config, by their keys below `aopsd`."""
    return {key: name for key in WANTED if is_own(name := attrgetter(key)(aopsd))}


def own_class(key: str, name: str) -> Any:
    """The class that `aopsd.KEY: name` means. Raises UserError if there is none, or if it lacks a member.

    Where it is a run's that is read (`kept_copy`), and cannot be imported: the run's copy, or a stand-in.
    """
    place = _place(name)
    try:
        return _own_class(key, name, place)
    except UserError as error:
        if (copy := _copies.get((key, place))) is None:
            raise
        return _kept(key, name, copy, str(error))


def kept_copy(key: str, name: object, copies: Path | None) -> None:
    """A run that names this class is read: nothing is made with it, so `own_class` does with the copy in `copies`.

    None: no run is read, and the class must be there.
    """
    if not (isinstance(name, str) and is_own(name)):
        return
    place = _place(name)
    _copies.pop((key, place), None)
    if copies is not None:
        file = Path(place).name if place.endswith(".py") else f"{place.rpartition('.')[2]}.py"
        _copies[key, place] = copies / file


@cache
def _kept(key: str, name: str, copy: Path, told: str) -> Any:
    """The class in the copy; or one that says nothing of itself, and raises `told` where it is to do something."""
    no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # the run's folder stays as it is
    try:
        return _own_class(key, f"{copy}:{name.partition(':')[2]}", str(copy))
    except UserError:
        first = told.partition("\n")[0]
        warn([f"{first} Nor can its copy {copy} be imported. What the class says of itself is left out"])
    finally:
        sys.dont_write_bytecode = no_bytecode

    def refuse(*_: Any, **__: Any) -> None:
        raise UserError(told)

    members = {member: _UNKNOWN.get(member, refuse) for member in WANTED[key]}
    return type("Unknown", (), members | {"__init__": lambda self, *_: None})


@cache
def _own_class(key: str, name: str, place: str) -> Any:
    attribute = name.partition(":")[2]
    module = _module(key, name, place)
    found = getattr(module, attribute, None)
    if not inspect.isclass(found):
        classes = [each for each, value in vars(module).items() if inspect.isclass(value)]
        raise UserError(f"aopsd.{key}={name}: {place} has no class `{attribute}`.{nearest(attribute, classes)}")
    lacking = [member for member in WANTED[key] if not hasattr(found, member)]
    if lacking:
        listed = ", ".join(f"`{each}`" for each in lacking)
        raise UserError(f"aopsd.{key}={name}: the class has no {listed}. docs/extending.md lists what each kind needs.")
    return found


def made(key: str, name: str, *arguments: Any) -> Any:
    """An object of that class, made once a process: it may remember earlier steps. Raises UserError if that fails."""
    return _made(own_class(key, name), key, name, *arguments)


@cache
def _made(kind: Any, key: str, name: str, *arguments: Any) -> Any:
    return fresh(key, name, *arguments)


def fresh(key: str, name: str, *arguments: Any) -> Any:
    """As `made`, but an object that nobody else has."""
    kind = own_class(key, name)
    label, file = f"aopsd.{key}={name}", inspect.getfile(kind)
    with blamed(f"{label}: making the object failed", file):
        return Part(kind(*arguments), label, file)


class Part:
    """An object of the user's own. Where a call of it fails, its UserError names their line, here or in a worker.

    Pickled, it needs their class and nothing else of this process.
    """

    def __init__(self, inner: Any, label: str, file: str):
        self.inner, self.label, self.file = inner, label, file

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not yet unpickled
            raise AttributeError(name)
        found = getattr(self.inner, name)
        return partial(self._call, found) if inspect.isroutine(found) else found

    def __call__(self, logprobs: Tensor, **columns: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Of an objective. Raises UserError unless the loss is one finite number with gradient, each metric one number.

        Log-probs that are not finite themselves are no fault of the class: the engine tells of them.
        """
        found = self._call(self.inner, logprobs, **columns)
        wanted = f"{self.label}: `__call__` must give"
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
            raise UserError(f"{wanted} loss and metrics; got {repr(found)[:120]}.")
        _check_loss(found[0], logprobs, wanted)
        return found[0], {name: _metric(name, value, wanted) for name, value in found[1].items()}

    def _call(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        with blamed(self.label, self.file):
            return function(*arguments, **keywords)


def _check_loss(loss: Any, logprobs: Tensor, wanted: str) -> None:
    import torch

    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        remedy = "`self.reduce(values, mask, num_tokens, num_rows)` makes one of [B, S]."
        raise UserError(f"{wanted} the loss as a tensor of one number; got {_kind(loss)}. {remedy}")
    # Log-probs without gradient make a loss that is only to be read.
    if logprobs.requires_grad and not loss.requires_grad:
        remedy = "`detach()` and `item()` take it away: return the loss from before them."
        raise UserError(f"{wanted} a loss with gradient in the log-probs; got one without. {remedy}")
    if not loss.isfinite().all() and logprobs.isfinite().all():
        found = f"got {loss.item()} at this step, where the student's log-probs are finite"
        remedy = (
            "Look for a division by 0, and for log, sqrt or exp of what they cannot take, also where `mask` is false."
        )
        raise UserError(f"{wanted} a finite loss; {found}. {remedy}")


def source_of_gradient(objective: object, loss: float) -> str:
    """What a gradient that is not finite likely comes from: an own objective whose loss is finite; else empty."""
    if not (isinstance(objective, Part) and math.isfinite(loss)):
        return ""
    remedy = "Look for sqrt or norm of 0, and for a log or a division that `torch.where` hides: their gradient stays."
    return f"the loss is {loss:g}, so the likely source is {objective.label}. {remedy}"


def _metric(name: str, value: Any, wanted: str) -> Tensor:
    """Engines add up tensors; a plain number becomes one."""
    import torch

    if isinstance(value, Real):
        return torch.tensor(float(value), dtype=torch.float64)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise UserError(f"{wanted} each metric as one number or a tensor of one; got {_kind(value)} for {name!r}.")
    return value


def _kind(value: Any) -> str:
    return f"shape {list(value.shape)}" if hasattr(value, "shape") else type(value).__name__


@contextmanager
def blamed(label: str, file: str) -> Iterator[None]:
    """Raise UserError with the line of `file` that has failed, and below it the traceback from there on."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's: the engine has the remedies
            raise
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [number for number, frame in enumerate(frames) if frame.filename == file]
        if not theirs and not frames[-1].filename.startswith(_NOT_THEIRS):
            theirs = [len(frames) - 1]
        at = f" {frames[theirs[-1]].filename}:{frames[theirs[-1]].lineno}:" if theirs else ""
        told = f"{label}:{at} {type(error).__name__}: {first_line(error)}. {_remedy(error, file)}"
        below = traceback.format_list(frames[theirs[0] :] if theirs else []) + traceback.format_exception_only(error)
        raise UserError("\n".join([told, "".join(below).rstrip()])) from error


def _remedy(error: Exception, file: str) -> str:
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return "docs/extending.md says what it is given."
    top, folder = error.name.partition(".")[0], Path(file).parent
    if (folder / f"{top}.py").exists() or (folder / top).is_dir():
        return f"{top} is beside it: put that folder on PYTHONPATH, export PYTHONPATH={folder}"
    return f"Install {top}, or put the folder that holds it on PYTHONPATH."


def check_own(aopsd: AOPSDConfig) -> None:
    """Make what needs no more than the config, before a model is loaded. Raises UserError as `made` does."""
    sources(aopsd)
    arguments = {"weighting": [aopsd], "judge.kind": [aopsd], "context.kind": []}
    for key, name in own_names(aopsd).items():
        if key in arguments:
            made(key, name, *arguments[key])


def module_from_file(part: Any) -> ModuleType | None:
    """The module of an object's class, if it is a file's, which no other process could import by its name."""
    module = sys.modules[type(part.inner if isinstance(part, Part) else part).__module__]
    return module if module.__name__.startswith(_PREFIX) else None


def sources(aopsd: AOPSDConfig) -> dict[str, Path]:
    """The files that own classes of a config are in, by key. Raises UserError where one cannot be imported."""
    return {key: Path(inspect.getfile(_own_class(key, name, _place(name)))) for key, name in own_names(aopsd).items()}


def _place(name: str) -> str:
    """The module, or the whole path of the file: one name means another file in another current folder."""
    place = name.partition(":")[0]
    return str(Path(place).resolve()) if place.endswith(".py") else place


def _module(key: str, name: str, place: str) -> ModuleType:
    label = f"aopsd.{key}={name}"
    with blamed(f"{label}: importing it failed", place):
        if place.endswith(".py"):
            if not Path(place).is_file():
                raise UserError(f"{label}: no file {place}. Check the path, taken from the current folder.")
            return _from_file(Path(place))
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise  # it is there, and imports what is not
            raise UserError(
                f"{label}: there is no module `{error.name}` (Python looks in {', '.join(sys.path[:3])}, ...). "
                "Expected MODULE:CLASS with the module on PYTHONPATH, or FILE.py:CLASS."
            ) from error


def _from_file(path: Path) -> ModuleType:
    name = f"{_PREFIX}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "the name ends in .py"
    sys.modules[name] = module = importlib.util.module_from_spec(spec)  # before it runs: dataclasses look there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
