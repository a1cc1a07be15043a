"""Config files in NeMo RL's dialect: `defaults:`, interpolation, dotted overrides, and one strict `aopsd:` block.

Each file and each override is checked by itself before all are merged, so an error names the line that caused it.
Nothing here needs a model; what only an engine can know is its own `check`.
"""

import io
import operator
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_aopsd.config.checks import check_block, check_run, find_non_blocks
from nemo_aopsd.config.extension import WANTED, is_own, kept_copy
from nemo_aopsd.config.keys import (
    HELD_OUT,
    MOST,
    VALIDATION,
    Fault,
    Layer,
    Origins,
    Tree,
    beside,
    every_key,
    find_bad_blocks,
    find_slips,
    flatten,
    likely,
    locate,
    select,
)
from nemo_aopsd.config.nemo_rl_keys import BLOCKS, LOCAL_KEYS, NEMO_RL_BLOCKS, NEMO_RL_DEFAULTS, REQUIRED_KEYS
from nemo_aopsd.config.schema import AOPSDConfig, Config
from nemo_aopsd.errors import UserError, first_line
from nemo_aopsd.files import decode_text

_OVERRIDE = re.compile(r"(?P<new>\+{0,2})(?P<key>[A-Za-z_][\w.\-]*)=(?P<value>.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.\-]*)\}")
_MISSING = object()
_KNOWN = (*LOCAL_KEYS, *BLOCKS)
_PATHS = (
    *("policy.model_name", "policy.tokenizer.name", "aopsd.judge.model"),
    *("data.train.data_path", "aopsd.evaluation.data_path", "logger.log_dir", "checkpointing.checkpoint_dir"),
    *("aopsd.prompts", *(f"aopsd.{key}" for key in WANTED)),
)
_NAMES = {dict: "a block of `key: value` lines", list: "a list"}
# PyYAML lets the last four through: a number or tag that it cannot make a value of (2020-13-01, !!bool x), and YAML
# that is nested beyond reason or stands inside itself.
_UNREADABLE = (yaml.YAMLError, OmegaConfBaseException, ValueError, LookupError, AttributeError, RecursionError)


def load_config(
    path: str | Path, overrides: Sequence[str] = (), method: Path | None = None, copies: Path | None = None
) -> Config:
    """The run that a config file, a method's file over it, and `key=value` overrides describe.

    `copies`: the run is only read, and there are its copies of classes of the user's own that cannot be imported.
    Raises UserError with a line for each fault, naming file, line and key.
    """
    register_resolvers()
    path = Path(path)
    merged = _merge_files([path, *([method] if method else [])])
    for override in overrides:
        with merged.telling():
            merged.add(_override_layer(override, merged.tree), {})
    config = None
    with merged.telling():
        config = _build(merged.tree, merged.origins, path, copies)
    merged.refuse()
    assert config is not None  # or a fault was told
    return config


def method_settings(path: Path) -> dict[str, Any]:
    """What a method's file sets, parents included, as dotted keys. Raises UserError on what is no setting."""
    return flatten(_read_block(path)[0])


def read_block(path: Path) -> AOPSDConfig:
    """The `aopsd:` block of a file that need have no other. Raises UserError on what is no setting."""
    return _read_block(path)[1]


def _read_block(path: Path) -> tuple[Tree, AOPSDConfig]:
    merged = _merge_files([path])
    merged.refuse()
    block, faults = check_block(merged.tree)
    _refuse(faults, merged.origins, path)
    return merged.tree, block or AOPSDConfig()


@dataclass
class _Merged:
    """Layers over one another, each checked by itself; where each key was written last, and all that was wrong."""

    path: Path
    tree: Tree = field(default_factory=dict)
    origins: Origins = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def add(self, layer: Layer, below: Tree) -> None:
        """`layer` over all so far; its spelling is compared with `below`. Raises UserError if no merge can mean it."""
        bad = dict(find_bad_blocks(layer))
        known = Layer({key: value for key, value in layer.tree.items() if key not in bad}, layer.origins)
        for key, message in (*bad.items(), *find_slips(known, below, _KNOWN)):
            self.told.append(f"{locate(key, layer.origins, self.path)}: {message}")
        self.tree, self.origins = _merge(self.tree, known, self.path), self.origins | layer.origins

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Keep what the block refuses for `refuse`, so that all faults are told at once."""
        try:
            yield
        except UserError as error:
            self.told.append(str(error))

    def refuse(self) -> None:
        if self.told:
            raise UserError("\n".join(self.told))


def _merge_files(files: Sequence[Path]) -> _Merged:
    """The files, parents first, over one another."""
    merged = _Merged(files[0])
    for layer in (layer for file in files for layer in file_layers(file)):
        merged.add(layer, merged.tree)
    return merged


def to_yaml(config: Config) -> str:
    """The resolved config as a file that `load_config` reads back to the same values."""
    return OmegaConf.to_yaml(OmegaConf.create(config.raw))


RECIPES = Path(__file__).parent / "recipes"


def file_layers(path: Path, children: tuple[Path, ...] = ()) -> Iterator[Layer]:
    """The layers of a file, parents first."""
    if path.resolve() in children:
        chain = " -> ".join(str(link) for link in (*children, path.resolve()))
        raise UserError(f"{path}: `defaults` go in a circle: {chain}. Remove one of them.")
    layer = read_file(path)
    where = locate("defaults", layer.origins, path)
    try:
        parents = _plain({"parents": layer.tree.get("defaults", [])}, resolve=True)["parents"]
    except OmegaConfBaseException as error:
        raise UserError(f"{where}: `defaults` has no value: {first_line(error)}.") from error
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise UserError(f"{where}: `defaults` must be a file name or a list of them.")
    for parent in parents:
        target, shipped = path.parent / os.path.expanduser(parent), RECIPES / f"{parent}.yaml"
        if not target.is_file() and Path(parent).name == parent and shipped.is_file():
            target = shipped
        if not target.is_file():
            told = f"`defaults` names {parent}, but there is no file {target}"
            hint = "Paths there are relative to the file that names them; `demo` is the config that the package ships."
            raise UserError(f"{where}: {told}. {hint}")
        yield from file_layers(target, (*children, path.resolve()))
    yield Layer({key: value for key, value in layer.tree.items() if key != "defaults"}, layer.origins)


def read_file(path: Path) -> Layer:
    """One YAML file as it stands, each key with its line. Raises UserError where it is no readable mapping."""
    if not path.is_file():
        found = "is a folder" if path.is_dir() else f"no such config file (looked from {Path.cwd()})"
        raise UserError(f"{path}: {found}. Expected a YAML file.{near_config(path)} Check the path.")
    text = decode_text(path.read_bytes(), str(path), "Save the file as UTF-8.")
    try:
        return _parse(text, path)
    except UserError:
        raise
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path}:{line}: broken YAML: {error.problem}. Correct the line.") from error
    except _UNREADABLE as error:
        raise UserError(f"{path}: broken YAML: {first_line(error)}. Correct the file.") from error


def near_config(path: Path) -> str:
    """A hint at a YAML file in the folder of `path` whose name is nearly its; empty if there is none."""
    files = {file.stem: file for file in sorted(path.parent.glob("*.y*ml"))}
    near = get_close_matches(path.stem, files, n=1, cutoff=0.75)
    return f" Did you mean `{files[near[0]]}`?" if near else ""


@lru_cache(maxsize=256)  # the members of a suite share their parents
def _parse(text: str, path: Path) -> Layer:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path}: expected `key: value` lines at the top, found a {root.id}.")
    tree = _plain(OmegaConf.load(io.StringIO(text))) if root else {}
    return Layer(tree, dict(_origins(root, str(path), "")))


def _plain(tree: Any, resolve: bool = False) -> Tree:
    """Nested dicts, interpolation as it is written unless `resolve`."""
    found = OmegaConf.to_container(OmegaConf.create(tree), resolve=resolve, throw_on_missing=resolve)
    assert isinstance(found, dict)  # as every file and override is
    return {str(key): value for key, value in found.items()}


def _origins(node: yaml.Node | None, path: str, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield f"{prefix}{key.value}", f"{path}:{key.start_mark.line + 1}"
            yield from _origins(value, path, f"{prefix}{key.value}.")


def _override_layer(text: str, tree: Tree) -> Layer:
    """`a.b=c` changes a key, `+a.b=c` or `++a.b=c` also adds one, as in NeMo RL; keys that we know need no plus."""
    match = _OVERRIDE.fullmatch(text)
    if not match:
        raise UserError(f"override `{text}`: expected key=value, for example aopsd.probes.threshold=1.5.")
    key = match["key"]
    may_add = match["new"] or key.startswith("aopsd.") or key in _KNOWN or key.split(".")[0] not in NEMO_RL_BLOCKS
    if not may_add and select(tree, key, _MISSING) is _MISSING:
        hint = HELD_OUT if key.split(".")[:2] == VALIDATION else _hint(key, tree)
        raise UserError(f"override `{text}`: no key `{key}` in the config.{hint} To add it: `+{text}`.")
    try:
        layer = _plain(OmegaConf.from_dotlist([f"{key}={match['value']}"]))
    except _UNREADABLE as error:
        raise UserError(f"override `{text}`: cannot read the value: {first_line(error)}. Quote it.") from error
    return Layer(layer, dict.fromkeys(_dotted(layer, ""), f"override `{text}`"))


def _hint(key: str, tree: Tree) -> str:
    """What a key that is not there may mean: a key of its block, or one elsewhere."""
    block, _, name = key.rpartition(".")
    known = dict.fromkeys([*flatten(tree), *every_key()])
    return likely(name, ([each for each in known if each.startswith(f"{block}.")], MOST), (known, 1))


def _dotted(tree: Tree, prefix: str) -> Iterator[str]:
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")


def _merge(base: Tree, layer: Layer, path: Path) -> Tree:
    """`layer` merged over `base`, by OmegaConf; a block with NeMo RL's `_override_: true` replaces the one below it.

    Raises UserError where a list meets a block, which no merge can mean.
    """

    def over(below: Tree, above: Tree, prefix: str) -> Tree:
        merged = dict(below)
        for key, new in above.items():
            old, dotted = merged.get(key), f"{prefix}{key}"
            if isinstance(new, dict):
                old = None if new.get("_override_") else _referred(old, base)
                new = {name: value for name, value in new.items() if name != "_override_"}
            if {type(old), type(new)} == {dict, list}:
                where, wanted, got = locate(dotted, layer.origins, path), _NAMES[type(old)], _NAMES[type(new)]
                raise UserError(f"{where}: `{dotted}` must be {wanted}, as below it; got {got}.")
            if isinstance(new, dict):
                merged[key] = over(old if isinstance(old, dict) else {}, new, f"{dotted}.")
            elif new != "???" or key not in merged:  # OmegaConf's sign for a value that is still to come
                merged[key] = new
        return merged

    return over(base, layer.tree, "")


def _referred(value: Any, base: Tree) -> Any:
    """The block that `${block}` means; any other value as it is."""
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return select(base, match[1]) if match else value


def _resolve(tree: Tree, origins: Origins, path: Path) -> Tree:
    try:
        return _plain(tree, resolve=True)
    except OmegaConfBaseException as error:
        key = _broken_key(tree, str(error.full_key), ())
        raise UserError(f"{locate(key, origins, path)}: `{key}` has no value: {first_line(error)}.") from error


def _broken_key(tree: Tree, key: str, seen: tuple[str, ...]) -> str:
    """The key that cannot be resolved by itself, where `key` is only made of it."""
    raw = select(tree, key)
    for name in _REFERENCE.findall(raw) if isinstance(raw, str) else ():
        try:
            OmegaConf.select(OmegaConf.create(tree), name)
        except OmegaConfBaseException:
            return key if name in seen else _broken_key(tree, name, (*seen, key))
    return key


def _require(tree: Tree, origins: Origins, path: Path) -> None:
    _refuse(find_non_blocks(tree), origins, path)
    missing = [key for key in REQUIRED_KEYS if select(tree, key) in (None, "", "???")]
    if missing:
        told = f"{path}: {', '.join(missing)} must be set. Add to the file, or pass {missing[0]}=VALUE."
        _refuse(check_block(tree)[1], origins, path, told)


def _refuse(faults: Iterable[Fault], origins: Origins, path: Path, *told: str) -> None:
    """Raise UserError if there are faults, or something `told` before them."""
    if lines := [*told, *(f"{locate(key, origins, path)}: {message}" for key, message in faults)]:
        raise UserError("\n".join(lines))


def _build(tree: Tree, origins: Origins, path: Path, copies: Path | None) -> Config:
    tree = _merge(NEMO_RL_DEFAULTS, Layer(tree, origins), path)
    _require(tree, origins, path)  # first, for other keys may be made of these
    raw = _resolve(tree, origins, path)
    _require(raw, origins, path)
    for block, _, name in (key.rpartition(".") for key in _PATHS):  # no shell expands `~` behind `policy.model_name=`
        if isinstance(found := select(raw, block), dict) and isinstance(found.get(name), str):
            found[name] = os.path.expanduser(found[name])
    for key in WANTED:
        kept_copy(key, select(raw, f"aopsd.{key}"), copies)
    if copies is None:
        _refuse(_find_beside(raw, origins, path), origins, path)
    run, faults = check_run(raw)
    _refuse(faults, origins, path)
    assert run is not None  # or there would be a fault
    blocks = {name: raw[name] for name in ("policy", "data", "logger", "checkpointing")}
    return Config(run.aopsd, **blocks, raw=raw | {"aopsd": asdict(run.aopsd)}, origins=origins)


def _find_beside(raw: Tree, origins: Origins, path: Path) -> Iterator[Fault]:
    """Files of own classes that are not where they are looked for, but beside the config."""
    for key in (f"aopsd.{each}" for each in WANTED):
        name = select(raw, key)
        if isinstance(name, str) and is_own(name) and (hint := beside(key, name, locate(key, origins, path))):
            yield key, f"{key}={name}: no such file (looked from {Path.cwd()}).{hint}"


def register_resolvers() -> None:
    """NeMo RL's arithmetic, such as `${mul:${policy.x}, 2}`, and `${package:PATH}` for a file of this package."""
    functions = {"mul": operator.mul, "div": operator.truediv, "max": max}
    functions["package"] = lambda part: str(Path(__file__).parents[1] / part)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # OmegaConf 2.4 renames the function; 2.3, in NeMo RL, has this name only
        for name, function in functions.items():
            OmegaConf.register_new_resolver(name, function, replace=True)
