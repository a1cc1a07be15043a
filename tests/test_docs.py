"""What the documents say about the code is true of the code."""

import ast
import re
import runpy
from pathlib import Path

import pytest

from nemo_aopsd.config.nemo_rl_keys import RunKeys
from nemo_aopsd.config.schema import keys_of

REPO = Path(__file__).parents[1]
ARCHITECTURE = (REPO / "docs/architecture.md").read_text(encoding="utf-8")
DOCUMENT = runpy.run_path(str(REPO / "docs/make_config.py"))
PAPER = REPO.parent / "shared/reference/paper.tex"


def test_the_config_reference_and_the_editor_s_schema_are_made_from_the_schema(tmp_path):
    DOCUMENT["main"](tmp_path)
    for name in ("config.md", "config.schema.json"):
        shipped = (REPO / "docs" / name).read_text(encoding="utf-8")
        assert shipped == (tmp_path / name).read_text(encoding="utf-8"), "python docs/make_config.py"


def test_every_key_has_a_reason():
    keys = [key for key, _ in keys_of(RunKeys)]
    rows = re.findall(r"^(?:## `([\w.]+)`|\| `(\w+)` \| .* \| .* \| (.+) \|)$", DOCUMENT["markdown"](), re.MULTILINE)
    block, documented = "", []
    for heading, key, text in rows:
        block = heading or block
        if key:
            assert text.strip(), f"{block}.{key}"
            documented.append(f"{block}.{key}")
    parents = {key.rpartition(".")[0] for key in keys}
    assert sorted(documented) == sorted(set(keys) - parents)


def equation_rows():
    return re.findall(r"^\| `((?:eq|sec):[\w-]+)` \|.*?\| (.+?) \|$", ARCHITECTURE, re.MULTILINE)


def defined_in(path):
    """Names of functions and methods, `Class.method` for the latter."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from (f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef))


def test_every_place_of_the_equation_table_exists():
    places = [place for _, cell in equation_rows() for place in re.findall(r"`(\S+?):(\S+?)`", cell)]
    assert len(places) >= 8
    for file, name in places:
        assert name in set(defined_in(REPO / "nemo_aopsd" / file)), f"{file}:{name}"


def test_every_equation_of_the_paper_is_in_the_table():
    if not PAPER.exists():
        pytest.skip("the paper's source is not here")
    labels = set(re.findall(r"\\label\{(eq:[\w-]+)\}", PAPER.read_text(encoding="utf-8")))
    assert labels <= {label for label, _ in equation_rows()}


PAGES = sorted([*REPO.glob("*.md"), *REPO.glob("docs/*.md"), *REPO.glob("containers/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_every_place_of_the_architecture_page_exists():
    table = ARCHITECTURE.partition("## One problem's way")[2].partition("## From equation")[0]
    for place in re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?)(?::\w+)?`", table):
        assert any((REPO / root / place).exists() for root in ("nemo_aopsd", "nemo_aopsd/config", "")), place


def test_every_command_of_the_readme_and_its_options_are_there():
    import typer

    from nemo_aopsd.cli.app import app

    text = (REPO / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^aopsd ([^#\n]+)", text, re.MULTILINE)
    assert len(lines) > 15
    for line in lines:
        words, command = line.split(), typer.main.get_command(app)
        while hasattr(command, "commands") and not words[0].startswith("-"):
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line
