"""Final answers: which box counts, what is equal, and what happens when nobody can tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_aopsd import grading
from nemo_aopsd.grading import Grade, extract_answer, grade


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("the answer is 204", None),
        ("\\boxed 204", None),
        ("\\boxed{204", None),
        ("\\boxed{204}", "204"),
        ("\\boxed {204}, \\boxed\n{205}", "205"),
        ("\\fbox{204}", "204"),
        ("\\framebox{204}", None),
        ("\\boxed{}", ""),
        ("\\boxed{1} then \\boxed{2}. Text after.", "2"),
        ("\\boxed{1} then \\boxed{2", "1"),
        ("\\boxed{\\frac{1}{\\sqrt{2}}}", "\\frac{1}{\\sqrt{2}}"),
        ("\\boxed{x = \\boxed{5}}", "5"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\{1}", "\\{1"),
        ("\\boxed{a \\\\{b}}", "a \\\\{b}"),  # a line break, then a group
        ("\\\\boxed{5}", "5"),  # escaped once too often
        ("} } \\boxed{5}", "5"),
        ("{ \\boxed{5}", "5"),
        ("<think>\\boxed{1}</think> so \\boxed{2}", "2"),
        ("<think>\\boxed{1}</think> no box here", None),
        ("thoughts \\boxed{1}</think> \\boxed{2}", "2"),  # the template opened the thought
        ("<think>cut in the middle of \\boxed{1}", None),
        ("</think>\\boxed{1}<think>again \\boxed{2}", "1"),
    ],
)
def test_the_box_that_counts(text, expected):
    assert extract_answer(text) == expected


@given(st.text(alphabet="\\boxed{}f<think/> 1", max_size=60))
def test_extraction_never_fails_and_stays_inside_the_text(text):
    answer = extract_answer(text)
    assert answer is None or "{" + answer + "}" in text


def test_a_degenerate_output_is_read():
    """In linear time; quadratic code would take hours."""
    assert extract_answer("\\boxed{" * 50_000) is None
    assert extract_answer("\\boxed{1}" * 50_000) == "1"
    assert extract_answer("}" * 200_000 + "{" * 200_000) is None


@pytest.fixture
def no_process(monkeypatch):
    def refuse(operation, predicted, answer, seconds=0.0):
        raise AssertionError(f"{predicted!r} and {answer!r} should have been decided without the grading process")

    grading._compare_short.cache_clear()
    monkeypatch.setattr(grading.POOL, "ask", refuse)
    yield
    grading._compare_short.cache_clear()


@pytest.mark.parametrize(
    ("boxed", "answer", "correct"),
    [
        ("204", "204", True),
        ("0204", "204", True),
        ("51", "051", True),
        ("000", "0", True),
        ("-0", "0", True),
        ("+7", "7", True),
        ("\u22127", "-7", True),
        ("7", "-7", False),
        ("1,234,567", "1234567", True),
        ("1{,}000", "1000", True),
        ("1\\,000", "1000", True),
        ("32,\\! 349", "32349", True),
        ("$204$", "204", True),
        ("204", "$204$", True),
        ("204", "\\boxed{204}", True),
        ("204.", "204", True),
        ("\\text{051}", "51", True),
        ("\\text{-}984", "-984", True),
        ("\\mathrm{\\text{12}}", "12", True),
        ("336^\\circ", "336", True),
        ("336^{\\circ}", "336", True),
        ("336\u00b0", "336", True),
        ("\\$ 30", "30", True),
        ("2041", "204", False),
        ("204204", "204", False),
        ("9" * 5000, "9" * 5000, True),  # more digits than `int` reads
        ("9" * 5000, "8", False),
        ("\\frac{1}{2}", "\\frac{1}{2}", True),
        ("\\text{east}", "east", True),
        ("0.5", "\\frac{1}{2}", True),
        ("\\dfrac24", "\\frac{1}{2}", True),
        ("1/576", "\\frac{1}{576}", True),
        ("0.001736", "\\frac{1}{576}", False),  # math-verify rounds to six places
        ("149\\tfrac{1}{3}", "\\frac{448}{3}", True),
        ("-1 1/2", "-1.5", True),
        ("2\\frac{3}{2}", "\\frac{7}{2}", None),  # no mixed number; math-verify decides
        ("0,111", "0.111", True),
        ("50\\%", "0.5", True),
        ("50\\%", "50", False),
        ("50", "50\\%", True),
        ("204\\%", "204", False),
        ("44.4\\%", "\\frac{4}{9}", False),
        ("10", "10\\%", True),
        ("0.333333333333", "\\frac{1}{3}", True),
        ("0.3333333", "\\frac{1}{3}", False),
        ("0.333333333334", "\\frac{1}{3}", True),
        ("0.333333333335", "\\frac{1}{3}", False),
        ("15", "15\\mbox{ cm}^2", True),
        ("1320 km", "1320", True),
        ("\\frac{3}{0}", "\\frac{3}{0}", True),
    ],
)
def test_numbers_and_identical_strings_need_no_process(no_process, boxed, answer, correct):
    if correct is None:
        with pytest.raises(AssertionError, match="without the grading process"):
            grade(f"\\boxed{{{boxed}}}", answer)
    else:
        assert grade(f"So \\boxed{{{boxed}}}.", answer) == Grade(correct, "correct" if correct else "wrong")


@pytest.mark.parametrize(
    ("boxed", "answer", "correct"),
    [
        ("\\dfrac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}", True),
        ("2^3", "8", True),
        ("2^{100}", "2^{99}", False),
        ("(2, 1)", "(1, 2)", False),
        ("1 2", "12", False),
        ("1,2", "12", False),
        ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", True),
        ("no solution", "7", False),
    ],
)
def test_algebra_is_left_to_the_grading_process(boxed, answer, correct):
    assert grade(f"\\boxed{{{boxed}}}", answer) == Grade(correct, "correct" if correct else "wrong")


@pytest.mark.parametrize("text", ["", "The answer is 204.", "\\boxed{}", "\\boxed{ }", "<think>\\boxed{204}"])
def test_no_box_is_wrong_even_if_the_number_stands_there(text):
    assert grade(text, "204") == Grade(False, "no_answer")


def test_only_the_boxed_text_is_graded():
    """math-verify on whole texts pays a phrase outside the box, or merges neighbouring boxes."""
    assert not grade("\\boxed{203}. The final answer is 204", "204").correct
    assert grade("\\boxed{203}. Wait, that is wrong. So \\boxed{204}", "204").correct


def test_a_blank_answer_is_a_programming_error():
    with pytest.raises(ValueError, match="blank"):
        grade("\\boxed{1}", " ")
