"""A suite: one base config, settings that all members share, and members by name. What each run will be.

    config: mine.yaml                      # relative to this file, or `demo`, which is shipped
    settings: {aopsd: {max_num_epochs: 2}}   # over it, for every member; a method or a member may say otherwise
    reference: opsd                          # besides `base`, what the others are compared with
    members:
      base:                                  # no value: the method of that name
      opsd:
      wide_probes: {method: aopsd, settings: {aopsd: {probes: {length: 16}}}}
      mine: {config: mine.yaml}              # a file of one's own over the base config

`defaults: OTHER.yaml` makes a suite of another one. `base` is the model as it is: a member that takes no step.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, cast

from omegaconf import OmegaConf
from pydantic import BaseModel, Field, StringConstraints, ValidationError

from nemo_aopsd.config.keys import Origins, Tree, flatten, locate
from nemo_aopsd.config.load import file_layers
from nemo_aopsd.config.nemo_rl_keys import RunKeys
from nemo_aopsd.config.schema import Config
from nemo_aopsd.config.shipped import FOLDER, find_recipe, list_methods
from nemo_aopsd.errors import UserError, nearest

# What must be equal for a comparison to be one. Prompts and lengths may be what an ablation is about.
_ALIKE = ("policy.model_name", "data.train.data_path", "aopsd.evaluation.")

# What pydantic calls a fault, and what the file must have there.
_WANTED = {
    "dict_type": "expected NAME: VALUE, as in `members: {aopsd: , grpo: }` or `settings: {aopsd: {seed: 3}}`",
    "model_type": "expected `{method: NAME}`, `{config: FILE}` or nothing, and `settings`",
    "string_type": "expected a text",
    "string_pattern_mismatch": "expected a name of letters, digits and `_.+-`",
    "too_short": "expected a member or more",
}

_BLOCKS = [block.name for block in fields(RunKeys)]  # of a config

FindMethod = Callable[[str], Path]  # name -> its config file; UserError where there is none
_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.+-]*$")]  # a folder's


class _MemberForm(BaseModel, extra="forbid", strict=True):
    """A member as the file has it."""

    method: str | None = None
    config: str | None = None
    settings: dict[str, Any] | None = None


class _SuiteForm(BaseModel, extra="forbid", strict=True):
    """A suite as the file has it, `defaults` merged."""

    config: str
    settings: dict[str, Any] | None = None
    reference: str | None = None
    members: Annotated[dict[_Name, _MemberForm | None], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Member:
    """`file` is the config of its method, or one of its own; `settings` go over it."""

    name: str
    file: Path
    settings: dict[str, Any]


@dataclass(frozen=True)
class Suite:
    """`settings` go over `config` and below each member; with `reference` others are compared besides `base`."""

    path: Path
    config: Path
    settings: dict[str, Any]
    members: tuple[Member, ...]
    reference: str | None

    @cached_property
    def labels(self) -> dict[str, str]:
        """What tables call the members that are shipped methods, where their names are symbols."""
        shipped = {method.name: method.shown for method in list_methods()}
        files = {member.name: member.file for member in self.members}
        return {name: shipped[name] for name, file in files.items() if file.stem == name and FOLDER in file.parents}


def load_suite(path: Path, find_method: FindMethod) -> Suite:
    """Read SUITE.yaml and those it is made of. Raises UserError naming file, line and key."""
    layers = list(file_layers(path))
    origins = {key: where for layer in layers for key, where in layer.origins.items()}
    merged = OmegaConf.merge(*(layer.tree for layer in layers))  # interpolation is left to the configs
    form = _checked(cast("Tree", OmegaConf.to_container(merged)), origins, path)
    config, members = _file(form.config, "config", origins, path), []
    for name, own in form.members.items():
        own, key = own or _MemberForm(), f"members.{name}"
        where = f"{locate(key, origins, path)}: member `{name}`"
        if own.config and own.method:
            raise UserError(f"{where} has `config` and `method`. Leave one out.")
        if own.config:
            members.append(Member(name, _file(own.config, f"{key}.config", origins, path), own.settings or {}))
            continue
        try:
            file = find_method(own.method or name)
        except UserError as error:
            otherwise = (
                "" if own.method else f" A member may have any name with its method: `{name}: {{method: NAME}}`."
            )
            raise UserError(f"{where}: {error}{otherwise}") from error
        members.append(Member(name, file, own.settings or {}))
    return Suite(path, config, form.settings or {}, tuple(members), form.reference)


def check_alike(configs: dict[str, Config]) -> None:
    """Raise UserError unless all members have the model, the problems and the evaluation of the first one."""
    leaves = {name: flatten(config.raw) for name, config in configs.items()}
    (first, expected), *others = leaves.items()
    if not expected.get("aopsd.evaluation.data_path"):
        raise UserError("aopsd.evaluation.data_path is null: without problems there is nothing to compare. Set it.")
    for name, found in others:
        for key in sorted(expected | found):
            if key.startswith(_ALIKE) and expected.get(key) != found.get(key):
                sides = f"{expected.get(key)!r} for {first} and {found.get(key)!r} for {name}"
                raise UserError(f"`{key}` is {sides}: no comparison. Set it in the suite's own `settings`.")


def _checked(tree: Tree, origins: Origins, path: Path) -> _SuiteForm:
    try:
        form = _SuiteForm.model_validate(tree)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in fault["loc"] if part != "[key]")
        where, found = locate(key, origins, path), f"{fault['input']!r}"[:60]
        if fault["type"] == "missing":
            there = ", ".join(map(str, tree)) or "nothing"
            raise UserError(
                f"{where}: no `{key}`. A suite has `config:`, the config of all runs, and `members:`; found {there}. "
                "Add it, or name a suite, such as `embedded`."
            ) from error
        if fault["type"] == "extra_forbidden":
            raise UserError(f"{where}: {_unknown(key)}") from error
        wanted = _WANTED.get(fault["type"], fault["msg"])
        raise UserError(f"{where}: `{key}`: {wanted}, found {found}. Correct it: docs/comparing.md.") from error
    if form.reference is not None and form.reference not in form.members:
        where = locate("reference", origins, path)
        names = list(form.members)
        found = f"`reference` is {form.reference!r}, which is no member: {', '.join(names)}."
        raise UserError(f"{where}: {found}{nearest(form.reference, names)}")
    return form


def _unknown(key: str) -> str:
    """What may stand in the place of a key; a config's block stands below `settings`."""
    above, _, name = key.rpartition(".")
    known = list((_MemberForm if above else _SuiteForm).model_fields)
    hint = f" Did you mean `settings: {{{name}: ...}}`?" if name in _BLOCKS else nearest(name, known)
    return f"unknown key `{key}`. Expected {', '.join(known)}.{hint}"


def _file(named: str, key: str, origins: Origins, path: Path) -> Path:
    """The config that `key` names, relative to the file where `key` stands, or a shipped one."""
    where = locate(key, origins, path)
    target = Path(where.rpartition(":")[0]).parent / os.path.expanduser(named)
    if not target.is_file():
        with suppress(UserError):  # which does not know `where`
            target = find_recipe(Path(named))
    if not target.is_file():
        raise UserError(f"{where}: there is no file {target}. Paths are relative to the file that names them.")
    return target.resolve()
