"""What the package ships in `recipes/`: methods, ablations, suites and the demo, found by name.

`demo.yaml` is a whole run and `suites/` compare methods on it. A file of `methods/` or `ablations/` holds only what
makes the method and goes over another config: its first line says what it is, its second one which row of the paper it
reproduces, and a third one, where the file's name is a symbol, a plain name with units.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_aopsd.config.load import RECIPES, method_settings, near_config
from nemo_aopsd.errors import UserError, nearest

FOLDER = RECIPES
KINDS = ("methods", "ablations")
_HEADER = re.compile(r"# (?P<title>.+)\n# Paper: (?P<row>\S.*?: \S.*)\n(?:# Name: (?P<plain>.+)\n)?")


@dataclass(frozen=True, slots=True)
class Method:
    """One config. `row` is the paper's row, or `none: ` and why it is there; `settings` are dotted keys and values.

    `shown` is what tables call it: the plain name and, in brackets, the name that one types.
    """

    name: str
    kind: str
    title: str
    row: str
    settings: dict[str, object]
    shown: str


def list_methods(folder: Path = FOLDER) -> Iterator[Method]:
    """All configs of `folder`, by kind and name. Raises UserError where a file has no header or is no config."""
    for path in _files(folder).values():
        header = _HEADER.match(path.read_text(encoding="utf-8"))
        if not header:
            raise UserError(f"{path}:1: expected `# what it is` and `# Paper: LABEL: its row there`. Add both lines.")
        shown = f"{header['plain']} ({path.stem})" if header["plain"] else path.stem
        yield Method(path.stem, path.parent.name, header["title"], header["row"], method_settings(path), shown)


def find_recipe(path: Path, folder: Path = FOLDER) -> Path:
    """What is shipped under the bare name `path`, such as `demo`; `path` itself if it is anything else.

    A file of that name in the working directory comes first. `folder` is `recipes/suites` for `embedded`. Raises
    UserError on a bare name of nothing.
    """
    shipped = folder / f"{path}.yaml"
    if path.name != str(path) or path.is_file():
        return path
    if shipped.is_file():
        return shipped
    if path.exists():  # a folder, which the reader of configs refuses
        return path
    names = sorted(file.stem for file in folder.glob("*.yaml"))
    if "=" in path.name:
        raise UserError(f"{path}: is a setting; the config comes before settings. Name a YAML file, or {names[0]}.")
    raise UserError(
        f"{path}: no such config file (looked from {Path.cwd()}). By name there is {', '.join(names)}."
        f"{nearest(path.name.removesuffix('.yaml'), names) or near_config(path)} Check the path or name."
    )


def find_method(name: str, folder: Path = FOLDER) -> Path:
    """The config of a method or ablation by its name. Raises UserError."""
    files = _files(folder)
    if name not in files:
        raise UserError(f"no method `{name}` in {folder}.{nearest(name, list(files))} `aopsd methods` lists them.")
    return files[name]


def _files(folder: Path) -> dict[str, Path]:
    return {path.stem: path for kind in KINDS for path in sorted((folder / kind).glob("*.yaml"))}
