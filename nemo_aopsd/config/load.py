"""Config files in NeMo RL's dialect: `defaults:`, interpolation, dotted overrides, and one strict `aopsd:` block.

Each file and each override is checked by itself before all are merged, so an error names the line that caused it.
Nothing here needs a model; what only an engine can know is its own `check`.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_aopsd.config.checks import check_block, check_run, find_non_blocks, told
from nemo_aopsd.config.keys import (
    Layer,
    Origins,
    check_blocks,
    check_spelling,
    first_line,
    flatten,
    locate,
    plain,
    select,
)
from nemo_aopsd.config.nemo_rl_keys import BLOCKS, LOCAL_KEYS, NEMO_RL_BLOCKS, NEMO_RL_DEFAULTS, REQUIRED_KEYS
from nemo_aopsd.config.rules import Fault
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError, nearest
from nemo_aopsd.files import decode_text

_OVERRIDE = re.compile(r"(?P<new>\+{0,2})(?P<key>[A-Za-z_][\w.\-]*)=(?P<value>.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.\-]*)\}")
_MISSING = object()
# PyYAML lets the last four through: a number or tag that it cannot make a value of (2020-13-01, !!bool x), and YAML
# that is nested beyond reason or stands inside itself.
_UNREADABLE = (yaml.YAMLError, OmegaConfBaseException, ValueError, LookupError, AttributeError, RecursionError)


def load_config(path: str | Path, overrides: Sequence[str] = (), method: Path | None = None) -> Config:
    """The run that a config file, a method's file over it, and `key=value` overrides describe.

    Raises UserError naming file, line and key.
    """
    register_resolvers()
    path = Path(path)
    layers = [*_file_layers(path, ()), *(_file_layers(method, ()) if method else ())]
    for layer in layers:
        check_blocks(layer, path)
    tree, known = OmegaConf.create(), (*LOCAL_KEYS, *BLOCKS)
    for layer in layers:
        check_spelling(layer, tree, known, path)
        tree = _merge(tree, layer, path)
    for override in overrides:
        layer = _override_layer(override, tree)
        check_blocks(layer, path)
        check_spelling(layer, OmegaConf.create(), known, path)
        layers.append(layer)
        tree = _merge(tree, layer, path)
    origins = {key: where for layer in layers for key, where in layer.origins.items()}
    tree = _merge(OmegaConf.create(NEMO_RL_DEFAULTS), Layer(tree, origins), path)
    _require(plain(tree), origins, path)  # first, for other keys may be made of these
    return _build(_resolve(tree, origins, path), origins, path)


def method_settings(path: Path) -> dict[str, Any]:
    """What a method's file sets, parents included, as dotted keys. Raises UserError on what is no setting."""
    tree, origins = OmegaConf.create(), {}
    for layer in _file_layers(path, ()):
        check_blocks(layer, path)
        tree, origins = _merge(tree, layer, path), origins | layer.origins
    raw = plain(tree)
    _refuse(check_block(raw)[1], origins, path)
    return flatten(raw)


def to_yaml(config: Config) -> str:
    """The resolved config as a file that `load_config` reads back to the same values."""
    return OmegaConf.to_yaml(OmegaConf.create(config.raw))


def _file_layers(path: Path, children: tuple[Path, ...]) -> Iterator[Layer]:
    """The layers of a file, parents first."""
    if path.resolve() in children:
        chain = " -> ".join(str(link) for link in (*children, path.resolve()))
        raise UserError(f"{path}: `defaults` go in a circle: {chain}. Remove one of them.")
    layer = read_file(path)
    where = locate("defaults", layer.origins, path)
    try:
        parents = layer.tree.pop("defaults", [])
        parents = OmegaConf.to_container(parents, resolve=True) if OmegaConf.is_config(parents) else parents
    except OmegaConfBaseException as error:
        raise UserError(f"{where}: `defaults` has no value: {first_line(error)}.") from error
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise UserError(f"{where}: `defaults` must be a file name or a list of them.")
    for parent in parents:
        target = path.parent / parent
        if not target.is_file():
            raise UserError(
                f"{where}: `defaults` names {parent}, but there is no file {target}. "
                "Paths in `defaults` are relative to the file that names them."
            )
        yield from _file_layers(target, (*children, path.resolve()))
    yield layer


def read_file(path: Path) -> Layer:
    """One YAML file as it stands, each key with its line. Raises UserError where it is no readable mapping."""
    if not path.is_file():
        found = "is a folder" if path.is_dir() else f"no such config file (looked from {Path.cwd()})"
        raise UserError(f"{path}: {found}. Expected a YAML file. Check the path.")
    text = decode_text(path.read_bytes(), str(path), "Save the file as UTF-8.")
    try:
        return _parse(text, path)
    except UserError:
        raise
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path}:{line}: broken YAML: {error.problem}. Mend the line.") from error
    except _UNREADABLE as error:
        raise UserError(f"{path}: broken YAML: {first_line(error)}. Mend the file.") from error


def _parse(text: str, path: Path) -> Layer:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path}: expected `key: value` lines at the top, found a {root.id}.")
    tree = OmegaConf.load(io.StringIO(text)) if root else OmegaConf.create()
    assert isinstance(tree, DictConfig)  # as its root is a mapping
    return Layer(tree, dict(_origins(root, str(path), "")))


def _origins(node: yaml.Node | None, path: str, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield f"{prefix}{key.value}", f"{path}:{key.start_mark.line + 1}"
            yield from _origins(value, path, f"{prefix}{key.value}.")


def _override_layer(text: str, tree: DictConfig) -> Layer:
    """`a.b=c` changes a key, `+a.b=c` or `++a.b=c` also adds one, as in NeMo RL; keys that we know need no plus."""
    match = _OVERRIDE.fullmatch(text)
    if not match:
        raise UserError(f"override `{text}`: expected key=value, for example aopsd.probes.threshold=1.5.")
    key, value = match["key"], match["value"]
    known = key.startswith("aopsd.") or key in (*LOCAL_KEYS, *BLOCKS)
    present = OmegaConf.select(tree, key, default=_MISSING, throw_on_resolution_failure=False) is not _MISSING
    if not (known or present or match["new"] or key.split(".")[0] not in NEMO_RL_BLOCKS):
        names = [*flatten(plain(tree)), *LOCAL_KEYS]
        raise UserError(f"override `{text}`: no key `{key}` in the config.{nearest(key, names)} To add it: `+{text}`.")
    try:
        layer = OmegaConf.from_dotlist([f"{key}={value}"])
    except _UNREADABLE as error:
        raise UserError(f"override `{text}`: cannot read the value: {first_line(error)}. Quote it.") from error
    return Layer(layer, dict.fromkeys(_dotted(plain(layer), ""), f"override `{text}`"))


def _dotted(tree: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")


def _merge(base: DictConfig, layer: Layer, path: Path) -> DictConfig:
    """`layer` over `base`; a block with NeMo RL's `_override_: true` replaces the one below it instead."""
    below, above = plain(base), plain(layer.tree)
    _drop_replaced(below, above, "", layer.origins, path)
    merged = OmegaConf.merge(below, above)
    assert isinstance(merged, DictConfig)  # for both are blocks
    return merged


def _drop_replaced(base: dict[str, Any], child: dict[str, Any], prefix: str, origins: Origins, path: Path) -> None:
    """Raises UserError where a list meets a block, which no merge can mean."""
    names = {dict: "a block of `key: value` lines", list: "a list"}
    for key, above in child.items():
        below, dotted = base.get(key), f"{prefix}{key}"
        if isinstance(above, dict) and above.pop("_override_", False):
            base.pop(key, None)
        elif {type(above), type(below)} == {dict, list}:
            raise UserError(
                f"{locate(dotted, origins, path)}: `{dotted}` must be {names[type(below)]}, as below it; "
                f"got {names[type(above)]}."
            )
        elif isinstance(above, dict) and isinstance(below, dict):
            _drop_replaced(below, above, f"{dotted}.", origins, path)


def _resolve(tree: DictConfig, origins: Origins, path: Path) -> dict[str, Any]:
    try:
        return plain(tree, resolve=True)
    except OmegaConfBaseException as error:
        key = _broken_key(tree, str(error.full_key), ())
        raise UserError(f"{locate(key, origins, path)}: `{key}` has no value: {first_line(error)}.") from error


def _broken_key(tree: DictConfig, key: str, seen: tuple[str, ...]) -> str:
    """The key that cannot be resolved by itself, where `key` is only made of it."""
    raw = select(plain(tree), key)
    for name in _REFERENCE.findall(raw) if isinstance(raw, str) else ():
        try:
            OmegaConf.select(tree, name)
        except OmegaConfBaseException:
            return key if name in seen else _broken_key(tree, name, (*seen, key))
    return key


def _require(tree: dict[str, Any], origins: Origins, path: Path) -> None:
    _refuse(find_non_blocks(tree), origins, path)
    missing = [key for key in REQUIRED_KEYS if select(tree, key) in (None, "", "???")]
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} must be set. Add to the file, or pass {missing[0]}=VALUE.")


def _refuse(faults: Iterable[Fault], origins: Origins, path: Path) -> None:
    lines = [f"{locate(key, origins, path)}: {told(key, message)}" for key, message in faults]
    if lines:
        raise UserError("\n".join(lines))


def _build(raw: dict[str, Any], origins: Origins, path: Path) -> Config:
    _require(raw, origins, path)
    run, faults = check_run(raw)
    _refuse(faults, origins, path)
    assert run is not None  # or there would be a fault
    return Config(
        aopsd=run.aopsd,
        policy=raw["policy"],
        data=raw["data"],
        logger=raw["logger"],
        checkpointing=raw["checkpointing"],
        raw=raw | {"aopsd": asdict(run.aopsd)},
    )


def register_resolvers() -> None:
    """NeMo RL's arithmetic, such as `${mul:${policy.x}, 2}`, and `${package:PATH}` for a file of this package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # OmegaConf 2.4 renames the function; 2.3, in NeMo RL, has this name only
        for name, function in (
            ("mul", lambda a, b: a * b),
            ("div", lambda a, b: a / b),
            ("max", lambda a, b: max(a, b)),
            ("package", lambda part: str(Path(__file__).parents[1] / part)),
        ):
            OmegaConf.register_new_resolver(name, function, replace=True)
