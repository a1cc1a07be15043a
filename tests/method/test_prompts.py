"""Filling: one pass, byte for byte, and loud about a gap or a file that is not there."""

from pathlib import Path

import pytest

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
    "judge_evidence": ("problem", "checkpoints", "attempt"),
    "judge_checkpoint": ("problem", "attempt", "checkpoint"),
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


def test_filling_is_one_pass_and_drops_the_last_line_break_alone(tmp_path):
    """A problem that speaks of {context} must not be given the context."""
    (tmp_path / "pair.txt").write_text("<{problem}|{context}|\\boxed{}|{0}>\n\n", encoding="utf-8")
    filled = fill(str(tmp_path), "pair", problem="see {context}", context="see {problem}")
    assert filled == "<see {context}|see {problem}|\\boxed{}|{0}>\n"


@pytest.mark.parametrize("name", ["gapless", "latin_1", "missing"])
def test_a_template_without_the_gap_or_in_another_encoding_or_absent_is_named(tmp_path, name):
    (tmp_path / "gapless.txt").write_bytes(b"{problem}")
    (tmp_path / "latin_1.txt").write_bytes(b"caf\xe9")
    with pytest.raises(
        UserError, match={"gapless": r"\['attempt'\]", "latin_1": "byte 3", "missing": "must be default"}[name]
    ) as error:
        fill(str(tmp_path), name, attempt="x")
    assert f"{name}.txt: " in str(error.value)
