"""Config files in NeMo RL's dialect: `defaults:`, interpolation, dotted overrides, and one strict `aopsd:` block.

Each file and each override is checked by itself before all are merged, so an error names the line that caused it.
Nothing here needs a model; what only an engine can know is its own `check`.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_aopsd.config.checks import BLOCKS, LOCAL_KEYS, REQUIRED_KEYS, find_faults, find_non_blocks, select
from nemo_aopsd.config.keys import (
    NEMO_RL_BLOCKS,
    Layer,
    Origins,
    check_keys,
    check_spelling,
    config_schema,
    first_line,
    flatten,
    locate,
    type_error,
)
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError, nearest
from nemo_aopsd.files import decode_text

# What our loop reads from NeMo RL's blocks and a short config may leave out.
NEMO_RL_DEFAULTS = {
    "policy": {"generation": {"temperature": 1.0, "top_p": 1.0, "top_k": None}},
    "checkpointing": {
        "enabled": True,
        "checkpoint_dir": "${logger.log_dir}/checkpoints",
        "save_period": 10,
        "keep_top_k": 2,
    },
}
_OVERRIDE = re.compile(r"(?P<new>\+{0,2})(?P<key>[A-Za-z_][\w.\-]*)=(?P<value>.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.\-]*)\}")
_MAX_DEPTH = 40
_MISSING = object()
# PyYAML lets these through for a number or tag that it cannot make a value of: 5,000 digits, 2020-13-01, !!bool x.
_UNREADABLE = (yaml.YAMLError, OmegaConfBaseException, ValueError, LookupError, AttributeError)


def load_config(path: str | Path, overrides: Sequence[str] = (), method: Path | None = None) -> Config:
    """The run that a config file, a method's file over it, and `key=value` overrides describe.

    Raises UserError naming file, line and key.
    """
    register_resolvers()
    path = Path(path)
    layers = [*_file_layers(path, ()), *(_file_layers(method, ()) if method else ())]
    for layer in layers:
        check_keys(layer, path)
    tree, known = OmegaConf.create(), (*LOCAL_KEYS, *BLOCKS)
    for layer in layers:
        check_spelling(layer, tree, known, path)
        tree = _merge(tree, layer, path)
    for override in overrides:
        layer = _override_layer(override, tree)
        check_keys(layer, path)
        check_spelling(layer, OmegaConf.create(), known, path)
        layers.append(layer)
        tree = _merge(tree, layer, path)
    origins = {key: where for layer in layers for key, where in layer.origins.items()}
    tree = _merge(OmegaConf.create(NEMO_RL_DEFAULTS), Layer(tree, origins), path)
    _require(OmegaConf.to_container(tree), origins, path)  # first, for other keys may be made of these
    raw = _resolve(tree, origins, path)
    _require(raw, origins, path)
    return _build(raw, origins, path)


def method_settings(path: Path) -> dict[str, Any]:
    """What a method's file sets, parents included, as dotted keys. Raises UserError on a key that there is not."""
    tree = OmegaConf.create()
    for layer in _file_layers(path, ()):
        check_keys(layer, path)
        tree = _merge(tree, layer, path)
    return flatten(OmegaConf.to_container(tree))


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
    _check_depth(text, str(path))
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path}: expected `key: value` lines at the top, found a {root.id}.")
    tree = OmegaConf.load(io.StringIO(text)) if root else OmegaConf.create()
    return Layer(tree, dict(_origins(root, str(path), "")))


def _check_depth(text: str, where: str, depth: int = 0) -> None:
    """Refuse what would overflow the stack of who reads it: YAML nested beyond reason, or inside itself."""
    anchors: list[str | None] = []  # of the collections that are open
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionStartEvent):
            anchors.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchors.pop()
        elif isinstance(event, yaml.AliasEvent) and event.anchor in anchors:
            raise UserError(f"{where}:{line}: `*{event.anchor}` stands inside itself. Remove it.")
        if depth + len(anchors) > _MAX_DEPTH:
            raise UserError(f"{where}:{line}: nested more than {_MAX_DEPTH} deep. Flatten it.")


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
        names = [*flatten(OmegaConf.to_container(tree, resolve=False)), *LOCAL_KEYS]
        raise UserError(f"override `{text}`: no key `{key}` in the config.{nearest(key, names)} To add it: `+{text}`.")
    try:
        _check_depth(value, f"override `{key}=...`", key.count("."))
        layer = OmegaConf.from_dotlist([f"{key}={value}"])
    except UserError:
        raise
    except _UNREADABLE as error:
        raise UserError(f"override `{text}`: cannot read the value: {first_line(error)}. Quote it.") from error
    return Layer(layer, dict.fromkeys(_dotted(OmegaConf.to_container(layer), ""), f"override `{text}`"))


def _dotted(tree: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")


def _merge(base: DictConfig, layer: Layer, path: Path) -> DictConfig:
    """`layer` over `base`; a block with NeMo RL's `_override_: true` replaces the one below it instead."""
    base, child = base.copy(), layer.tree.copy()
    _drop_replaced(base, child, "", layer.origins, path)
    return OmegaConf.merge(base, child)


def _drop_replaced(base: DictConfig, child: DictConfig, prefix: str, origins: Origins, path: Path) -> None:
    """Raises UserError where a list meets a block, which no merge can mean."""
    for key in list(child):
        above, below, dotted = child._get_node(key), base._get_node(key), f"{prefix}{key}"
        is_block = isinstance(above, DictConfig) and not above._is_none() and not above._is_interpolation()
        if is_block and above.pop("_override_", False):
            base.pop(key, None)
        elif {type(above), type(below)} == {DictConfig, ListConfig}:
            names = {DictConfig: "a block of `key: value` lines", ListConfig: "a list"}
            found, expected = names[type(above)], names[type(below)]
            raise UserError(
                f"{locate(dotted, origins, path)}: `{dotted}` must be {expected}, as below it; got {found}."
            )
        elif is_block and isinstance(below, DictConfig):
            _drop_replaced(below, above, f"{dotted}.", origins, path)


def _resolve(tree: DictConfig, origins: Origins, path: Path) -> dict[str, Any]:
    """Plain nested dicts, interpolation replaced, every default of `aopsd:` filled in."""
    schema = config_schema()
    try:
        resolved = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = _broken_key(tree, str(error.full_key), ())
        raise UserError(f"{locate(key, origins, path)}: `{key}` has no value: {first_line(error)}.") from error
    try:
        block = OmegaConf.merge(schema, resolved.get("aopsd", {}))
    except OmegaConfBaseException as error:
        raise type_error(error, schema, origins, path) from error
    return resolved | {"aopsd": OmegaConf.to_container(block)}


def _broken_key(tree: DictConfig, key: str, seen: tuple[str, ...]) -> str:
    """The key that cannot be resolved by itself, where `key` is only made of it."""
    raw = select(OmegaConf.to_container(tree), key)
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


def _refuse(faults: Iterator[tuple[str, str]], origins: Origins, path: Path) -> None:
    lines = [f"{locate(key, origins, path)}: `{key}` {message}" for key, message in faults]
    if lines:
        raise UserError("\n".join(lines))


def _build(raw: dict[str, Any], origins: Origins, path: Path) -> Config:
    _refuse(find_faults(raw), origins, path)
    return Config(
        aopsd=OmegaConf.to_object(OmegaConf.merge(config_schema(), raw["aopsd"])),
        policy=raw["policy"],
        data=raw["data"],
        logger=raw["logger"],
        checkpointing=raw["checkpointing"],
        raw=raw,
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
