"""What the documents say about the code is true of the code."""

import ast
import re
from dataclasses import MISSING, asdict, fields
from pathlib import Path

import pytest
import yaml

from nemo_aopsd.config.load import NEMO_RL_DEFAULTS, flatten
from nemo_aopsd.config.schema import AOPSDConfig
from nemo_aopsd.engines.local.settings import OptimizerSettings, Settings

REPO = Path(__file__).parents[1]
CHOICES = (REPO / "docs/choices.md").read_text(encoding="utf-8")
README = (REPO / "README.md").read_text(encoding="utf-8")
PAPER = REPO.parent / "shared/reference/paper.tex"


def test_every_default_is_in_the_table_of_choices_with_its_value_and_a_reason():
    rows = re.findall(r"^\| `([\w.]+)` \| `([^`]*)` \| (.+) \|$", CHOICES, re.MULTILINE)
    documented = {key: value for key, value, _ in rows}
    assert len(documented) == len(rows)
    actual = {f"aopsd.{key}": value for key, value in flatten(asdict(AOPSDConfig())).items()}
    actual |= flatten(NEMO_RL_DEFAULTS)
    actual |= {f"policy.{key}": value for key, value in defaults_of(Settings).items()}
    actual |= {f"policy.optimizer.kwargs.{key}": value for key, value in defaults_of(OptimizerSettings).items()}
    assert {key: yaml.safe_load(value) for key, value in documented.items()} == actual


def defaults_of(settings):
    values = {field.name: field.default for field in fields(settings) if field.default is not MISSING}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


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
