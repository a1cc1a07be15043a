"""cli.md, made from the commands themselves: `python docs/make_cli.py [FOLDER]`."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

import typer
from typer.cli import get_docs_for_click

from nemo_aopsd.cli.app import app

_HEAD = """\
# Command line

Made from the commands by `python docs/make_cli.py`; a test keeps it fresh. `[KEY=VALUE]...` are settings over the
config file: [config.md](config.md) lists all. What you can fix yourself ends with one message and exit code 2.
"""


def markdown() -> str:
    command = typer.main.get_command(app)
    text = html.unescape(get_docs_for_click(obj=command, ctx=typer.Context(command), name="aopsd"))
    text = re.sub(r"^\* `--help`: .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+\n", "", text)  # a table of contents, its texts cut short
    text = re.sub(r"\*\*Options\*\*:\n\n(?!\*)", "", text)  # had no other than --help
    text = re.sub(r"  \[([^\[\]\n]+)\]$", r" (`\1`)", text, flags=re.MULTILINE)  # [default: 64; x>=1]
    text = re.sub(r"^Examples:\n\n((?:aopsd .*\n+)+)", _block, text, flags=re.MULTILINE)
    body = text.partition("\n")[2]
    return f"{_HEAD}{body}".rstrip() + "\n"


def _block(found: re.Match[str]) -> str:
    """The examples below each other, as one block to copy from."""
    return "```bash\n{}\n```\n\n".format(re.sub(r"\n+", "\n", found[1]).strip())


def main(folder: Path) -> None:
    (folder / "cli.md").write_text(markdown(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
