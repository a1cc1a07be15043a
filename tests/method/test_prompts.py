"""Filling: one pass, byte for byte, and loud about a gap or a file that is not there."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_aopsd import prompts
from nemo_aopsd.errors import UserError
from nemo_aopsd.prompts import fill, read

NASTY = "\\boxed{} {0} {} {problem} {context} {attempt} %s $1 \\1 \\g<0> \\n {{x}} $\\frac{1}{2}$ \r\n\ttab"
TEMPLATES = {
    "student": ("problem",),
    "teacher_solution": ("problem", "context"),
    "teacher_plan": ("problem", "context"),
    "teacher_subproblems": ("problem", "context"),
    "teacher_dag": ("problem", "context"),
    "teacher_dag_marked": ("problem", "context"),
    "teacher_other_problem": ("problem", "donor_problem", "context"),
    "judge": ("problem", "checkpoints", "attempt"),
}
FAMILIES = sorted(entry.name for entry in Path(prompts.__file__).parent.iterdir() if (entry / "student.txt").is_file())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_keeps_nasty_text_byte_for_byte(family, name):
    template = read(family, name)
    expected = template
    for gap in TEMPLATES[name]:
        assert template.count(f"{{{gap}}}") == 1
        expected = expected.replace(f"{{{gap}}}", f"\0{gap}\0")
    for gap in TEMPLATES[name]:
        expected = expected.replace(f"\0{gap}\0", NASTY)
    assert fill(family, name, **dict.fromkeys(TEMPLATES[name], NASTY)) == expected


@pytest.fixture
def family(tmp_path):
    """A family in a folder of the user's own, as a path."""
    (tmp_path / "pair.txt").write_text("<{problem}|{context}|\\boxed{}|{0}>\n", encoding="utf-8")
    return str(tmp_path)


def test_filling_is_one_pass(family):
    """A problem that speaks of {context} must not be given the context."""
    filled = fill(family, "pair", problem="see {context}", context="see {problem}")
    assert filled == "<see {context}|see {problem}|\\boxed{}|{0}>"


@given(st.text(), st.text())
def test_any_text_survives(problem, context):
    filled = fill("default", "teacher_plan", problem=problem, context=context)
    head, middle = read("default", "teacher_plan").split("{context}")[0].split("{problem}")
    assert filled.startswith(head + problem + middle + context)


def test_only_the_last_line_break_of_a_template_goes(tmp_path):
    (tmp_path / "a.txt").write_text("x\n\n", encoding="utf-8")
    assert read(str(tmp_path), "a") == "x\n"


def test_a_template_without_the_gap_is_refused(family):
    with pytest.raises(UserError, match=r"pair\.txt: the gaps \['attempt'\] are not in the template\. Add \{attempt\}"):
        fill(family, "pair", attempt="x")


@pytest.mark.parametrize("missing", ["/nowhere/at/all", "defalt"])
def test_an_unknown_family_names_the_known_ones(missing):
    with pytest.raises(UserError, match=r"no such prompt.*'default'"):
        fill(missing, "student", problem="x")


def test_a_template_that_is_not_utf_8_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"a\.txt: byte 3 is not UTF-8\. Save the file as UTF-8\."):
        read(str(tmp_path), "a")
