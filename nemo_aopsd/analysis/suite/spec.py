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

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from nemo_aopsd.config.keys import Origins, locate
from nemo_aopsd.config.load import flatten, read_file
from nemo_aopsd.config.methods import find_recipe
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError, nearest

BASE = "base"
_KEYS = ("config", "settings", "reference", "members")
_MEMBER_KEYS = ("method", "config", "settings")
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")  # a folder's name
# What must be equal for a comparison to be one. Prompts and lengths may be what an ablation is about.
_ALIKE = ("policy.model_name", "data.train.data_path", "aopsd.evaluation.")

FindMethod = Callable[[str], Path]  # name -> its config file; UserError where there is none


@dataclass(frozen=True, slots=True)
class Member:
    """`file` is the config of its method, or one of its own; `settings` go over it."""

    name: str
    file: Path
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Suite:
    """`settings` go over `config` and below each member; with `reference` others are compared besides `base`."""

    path: Path
    config: Path
    settings: dict[str, Any]
    members: tuple[Member, ...]
    reference: str | None


def load_suite(path: Path, find_method: FindMethod) -> Suite:
    """Read SUITE.yaml and those it is made of. Raises UserError naming file, line and key."""
    tree, origins = _read(path, ())
    _check_keys(tree, _KEYS, "", origins, path)
    if not isinstance(tree.get("config"), str):
        raise UserError(f"{locate('config', origins, path)}: `config` must name the config file of all members.")
    members = tree.get("members")
    if not isinstance(members, dict) or not members:
        raise UserError(f"{locate('members', origins, path)}: `members` must be a block with a line a member.")
    settings = _settings(tree, "settings", origins, path)
    reference = tree.get("reference")
    if reference is not None and reference not in members:
        where = locate("reference", origins, path)
        raise UserError(f"{where}: `reference` is {reference!r}, which is no member: {', '.join(map(str, members))}.")
    reader = _Reader(path, origins, find_method)
    read = tuple(reader.member(name, value) for name, value in members.items())
    return Suite(path, Path(tree["config"]), settings, read, reference)


@dataclass(frozen=True, slots=True)
class _Reader:
    """What all members are read with."""

    path: Path
    origins: Origins
    find_method: FindMethod

    def member(self, name: object, value: Any) -> Member:
        key = f"members.{name}"
        where = locate(key, self.origins, self.path)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(f"{where}: member {name!r}: it names a folder, so letters, digits and _ . + - only.")
        if value is not None and not isinstance(value, dict):
            raise UserError(f"{where}: `{key}` must be empty or a block of {', '.join(_MEMBER_KEYS)}; got {value!r}.")
        value = value or {}
        _check_keys(value, _MEMBER_KEYS, f"{key}.", self.origins, self.path)
        settings = _settings(value, "settings", self.origins, self.path, f"{key}.")
        return Member(name, self._file(name, value, where), settings)

    def _file(self, name: str, value: dict[str, Any], where: str) -> Path:
        if "config" in value and "method" in value:
            raise UserError(f"{where}: member `{name}` has `config` and `method`. Leave one out.")
        if "config" in value:
            return Path(value["config"])
        try:
            return self.find_method(value.get("method", name))
        except UserError as error:
            raise UserError(f"{where}: member `{name}`: {error}") from error


def check_alike(configs: dict[str, Config]) -> None:
    """Raise UserError unless all members have the model, the problems and the evaluation of the first one."""
    leaves = {name: flatten(config.raw) for name, config in configs.items()}
    (first, expected), *others = leaves.items()
    if not expected.get("aopsd.evaluation.data_path"):
        raise UserError(
            "aopsd.evaluation.data_path is null: without held-out problems there is nothing to compare. Set it."
        )
    for name, found in others:
        for key in sorted(expected | found):
            if key.startswith(_ALIKE) and expected.get(key) != found.get(key):
                raise UserError(
                    f"`{key}` is {expected.get(key)!r} for {first} and {found.get(key)!r} for {name}: they could not "
                    "be compared. Set it in the suite's own `settings`."
                )


def _read(path: Path, children: tuple[Path, ...]) -> tuple[dict[str, Any], Origins]:
    """The suite, parents merged below it, and its `config` paths made absolute."""
    if path.resolve() in children:
        raise UserError(f"{path}: `defaults` go in a circle. Remove one of them.")
    layer = read_file(path)
    tree = cast("dict[str, Any]", OmegaConf.to_container(layer.tree))  # interpolation is left to the configs
    for key, block in _blocks_with_config(tree):
        target = path.parent / block["config"]
        if not target.is_file():
            target = find_recipe(Path(block["config"]))
        if not target.is_file():
            where = locate(key, layer.origins, path)
            raise UserError(f"{where}: there is no file {target}. Paths are relative to the file that names them.")
        block["config"] = str(target.resolve())
    parent = tree.pop("defaults", None)
    if parent is None:
        return tree, layer.origins
    if not isinstance(parent, str):
        raise UserError(f"{locate('defaults', layer.origins, path)}: `defaults` must name one suite.")
    below, origins = _read(path.parent / parent, (*children, path.resolve()))
    return cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.merge(below, tree))), origins | layer.origins


def _blocks_with_config(tree: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    members = tree.get("members")
    named = {f"members.{name}.": value for name, value in members.items()} if isinstance(members, dict) else {}
    for prefix, block in ({"": tree} | named).items():
        if isinstance(block, dict) and isinstance(block.get("config"), str):
            yield f"{prefix}config", block


def _settings(tree: dict[str, Any], key: str, origins: Origins, path: Path, prefix: str = "") -> dict[str, Any]:
    value = tree.get(key)
    if value is not None and not isinstance(value, dict):
        raise UserError(
            f"{locate(prefix + key, origins, path)}: `{prefix}{key}` must be blocks as in a config; got {value!r}."
        )
    return value or {}


def _check_keys(tree: dict[str, Any], known: tuple[str, ...], prefix: str, origins: Origins, path: Path) -> None:
    for key in tree:
        if key not in known:
            where = locate(f"{prefix}{key}", origins, path)
            hint = nearest(str(key), known)
            raise UserError(f"{where}: unknown key `{prefix}{key}`.{hint} Known: {', '.join(known)}.")
