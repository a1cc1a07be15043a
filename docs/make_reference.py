"""cli.md and paper_index.md, from commands and method configs: `python docs/make_reference.py [FOLDER]`."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.cli import get_docs_for_click

from nemo_aopsd.cli.app import app
from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.config.shipped import Method, list_methods
from nemo_aopsd.method.objectives import build_objective

_HEAD = """\
# Command line

Made from the commands by `python docs/make_reference.py`; a test keeps it fresh. `[KEY=VALUE]...` are settings over the
config file: [config.md](config.md) lists all. What you can fix yourself ends with one message and exit code 2.
"""


def commands() -> str:
    command = typer.main.get_command(app)
    text = html.unescape(get_docs_for_click(obj=command, ctx=typer.Context(command), name="aopsd"))
    text = re.sub(r"^\* `--help`: .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+\n", "", text)  # a table of contents, its texts cut short
    text = re.sub(r"\*\*Options\*\*:\n\n(?!\*)", "", text)  # had no other than --help
    text = re.sub(r"  \[([^\[\]\n]+)\]$", r" (`\1`)", text, flags=re.MULTILINE)  # [default: 64; x>=1]
    text = re.sub(r"^Examples:\n\n((?:aopsd .*\n+)+)", _block, text, flags=re.MULTILINE)
    body = text.partition("\n")[2]
    return f"{_HEAD}{body}".rstrip() + "\n"


_INDEX = """\
# From the paper to the code

Each row of the paper's tables and figures that a config reproduces, with the code of its four choices: made from the
configs by `python docs/make_reference.py`; a test keeps it fresh. Equations are in
[architecture.md](architecture.md#from-equation-to-line), formulas and all other methods in [methods.md](methods.md).
`aopsd train CONFIG --method NAME` runs one. In the last column the `aopsd.` before each key is left out.

"""
_CHOICES = {"context.kind": "context", "weighting": "weighting", "curriculum.name": "curriculum"}


def paper_index() -> str:
    lines = ["| in the paper | `--method` | objective | context | weighting | curriculum | else |", "|" + "---|" * 7]
    rows = [(row, method) for method in list_methods() for row in method.row.split("; ") if not row.startswith("none:")]
    for row, method in sorted(rows, key=lambda each: (each[0].partition(":")[0], each[0])):
        lines.append("| " + " | ".join([row, *_cells(method)]) + " |")
    return _INDEX + "\n".join(lines) + "\n"


def _cells(method: Method) -> Iterator[str]:
    settings = {key.removeprefix("aopsd."): value for key, value in method.settings.items()}
    yield f"[`{method.name}`](../nemo_aopsd/config/recipes/{method.kind}/{method.name}.yaml)"
    name = settings.pop("objective.name")
    yield _code(name, type(build_objective(ObjectiveConfig(name=name))).__module__)
    for key, module in _CHOICES.items():
        yield _code(settings.pop(key), f"nemo_aopsd.method.{module}")
    yield ", ".join(f"`{key}={value}`" for key, value in settings.items())


def _code(name: object, module: str) -> str:
    return f"[`{name}`](../{module.replace('.', '/')}.py)"


def _block(found: re.Match[str]) -> str:
    """The examples below each other, as one block to copy from."""
    return "```bash\n{}\n```\n\n".format(re.sub(r"\n+", "\n", found[1]).strip())


def main(folder: Path) -> None:
    (folder / "cli.md").write_text(commands(), encoding="utf-8")
    (folder / "paper_index.md").write_text(paper_index(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
