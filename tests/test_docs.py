"""What the documents say about the code is true of the code."""

import ast
import re
from pathlib import Path

import pytest

from nemo_aopsd.config import document
from nemo_aopsd.config.nemo_rl_keys import RunKeys
from nemo_aopsd.config.schema import keys_of

REPO = Path(__file__).parents[1]
README = (REPO / "README.md").read_text(encoding="utf-8")
PAPER = REPO.parent / "shared/reference/paper.tex"


def test_the_config_reference_and_the_editor_s_schema_are_made_from_the_schema(tmp_path):
    document.main(tmp_path)
    for name in ("config.md", "config.schema.json"):
        shipped = (REPO / "docs" / name).read_text(encoding="utf-8")
        assert shipped == (tmp_path / name).read_text(encoding="utf-8"), "python -m nemo_aopsd.config.document"


def test_every_key_has_a_reason():
    keys = [key for key, _ in keys_of(RunKeys)]
    rows = re.findall(r"^(?:## `([\w.]+)`|\| `(\w+)` \| .* \| .* \| (.+) \|)$", document.markdown(), re.MULTILINE)
    block, documented = "", []
    for heading, key, text in rows:
        block = heading or block
        if key:
            assert text.strip(), f"{block}.{key}"
            documented.append(f"{block}.{key}")
    parents = {key.rpartition(".")[0] for key in keys}
    assert sorted(documented) == sorted(set(keys) - parents)


def equation_rows():
    return re.findall(r"^\| `((?:eq|sec):[\w-]+)` \|.*?\| (.+?) \|$", README, re.MULTILINE)


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
