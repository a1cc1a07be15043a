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
import sys
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nemo_aopsd.errors import UserError, nearest

if TYPE_CHECKING:
    from nemo_aopsd.config.schema import AOPSDConfig

WANTED = {
    "weighting": ("continues", "weigh"),
    "context.kind": ("field", "adaptive", "messages"),
    "judge.kind": ("judge",),
    "curriculum.name": ("needs_progress", "batches", "state_dict", "load_state_dict"),
    "objective.name": ("signal", "prepare", "divergence", "reduce", "__call__"),
}


_PREFIX = "aopsd_file_"  # of the modules that files become: no file hides another one, or a module of Python's


def is_own(name: str) -> bool:
    """Whether a config's value names a class instead of a part of ours."""
    return ":" in name


def own(key: str, name: str) -> Any:
    """The class that `aopsd.KEY: name` means. Raises UserError if there is none, or if it lacks a member."""
    return _own(key, name, _place(name))


@cache
def _own(key: str, name: str, place: str) -> Any:
    attribute = name.partition(":")[2]
    module = _module(key, name, place)
    found = getattr(module, attribute, None)
    if not inspect.isclass(found):
        classes = [each for each, value in vars(module).items() if inspect.isclass(value)]
        raise UserError(f"aopsd.{key}={name}: {place} has no class `{attribute}`.{nearest(attribute, classes)}")
    lacking = [member for member in WANTED[key] if not hasattr(found, member)]
    if lacking:
        raise UserError(
            f"aopsd.{key}={name}: the class has no {', '.join(f'`{each}`' for each in lacking)}. "
            "docs/extending.md lists what each kind of class needs."
        )
    return found


def made(key: str, name: str, *arguments: Any) -> Any:
    """An object of that class, made once a process: it may remember earlier steps. Raises UserError if that fails."""
    return _made(key, name, _place(name), *arguments)


@cache
def _made(key: str, name: str, place: str, *arguments: Any) -> Any:
    try:
        return _own(key, name, place)(*arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"aopsd.{key}={name}: making the object failed: {type(error).__name__}: {error}. "
            "docs/extending.md says what each kind of class is made with."
        ) from error


def check_own(aopsd: AOPSDConfig) -> None:
    """Make what needs no more than the config, before a model is loaded. Raises UserError as `made` does."""
    for key, arguments in (("weighting", [aopsd]), ("judge.kind", [aopsd]), ("context.kind", [])):
        if is_own(name := attrgetter(key)(aopsd)):
            made(key, name, *arguments)


def is_from_file(module: ModuleType) -> bool:
    """Whether no other process could import it by its name."""
    return module.__name__.startswith(_PREFIX)


def sources(aopsd: AOPSDConfig) -> dict[str, Path]:
    """The files that own classes of a config are in, by key."""
    named = {key: value for key in WANTED if is_own(value := attrgetter(key)(aopsd))}
    return {key: Path(inspect.getfile(own(key, value))) for key, value in named.items()}


def _place(name: str) -> str:
    """The module, or the whole path of the file: one name means another file in another current folder."""
    place = name.partition(":")[0]
    return str(Path(place).resolve()) if place.endswith(".py") else place


def _module(key: str, name: str, place: str) -> ModuleType:
    try:
        return _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except FileNotFoundError as error:
        raise UserError(f"aopsd.{key}={name}: no file {place}. Expected FILE.py:CLASS.") from error
    except ModuleNotFoundError as error:
        raise UserError(
            f"aopsd.{key}={name}: there is no module `{error.name}` (Python looks in {', '.join(sys.path[:3])}, ...). "
            "Expected MODULE:CLASS with the module on PYTHONPATH, or FILE.py:CLASS."
        ) from error
    except Exception as error:
        raise UserError(f"aopsd.{key}={name}: importing {place} failed: {type(error).__name__}: {error}") from error


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
