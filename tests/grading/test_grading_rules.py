"""What equals what beyond fast exact paths, decided as the grading process does it but in this one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_aopsd.grading import grade_anywhere
from nemo_aopsd.grading.algebra import same_answer, same_anywhere
from nemo_aopsd.grading.exact import rational, same_clock, same_in_base, same_words
from nemo_aopsd.grading.extract import joined_answer, tagged_answer
from nemo_aopsd.grading.normalize import Answer, normalize
from nemo_aopsd.grading.structure import read_shape, same_shape

ROOTS = "\\frac{-1+\\sqrt{17}}{2}, \\frac{-1-\\sqrt{17}}{2}"
FOUR = "2,3,\\frac{3+i\\sqrt{3}}{2},\\frac{3-i\\sqrt{3}}{2}"


@pytest.mark.parametrize(
    ("predicted", "gold"),
    [
        ("\\frac{-1\\pm\\sqrt{17}}{2}", ROOTS),
        ("x = \\frac{-1\\pm\\sqrt{17}}{2}", ROOTS),
        ("\\left\\{\\frac{\\sqrt{17}-1}{2}, -\\frac{1+\\sqrt{17}}{2}\\right\\}", ROOTS),
        ("x=2, x=3, x=\\frac{3\\pm\\sqrt{3}i}{2}", FOUR),
        ("3 + 2\\sqrt{2}, 3 - 2\\sqrt{2}", "3 \\pm 2\\sqrt{2}"),
        ("\\{2, 1\\}", "1 \\text{ and } 2"),
        ("x = 1, y = 2", "1, 2"),
        ("y=2, x=1", "x=1, y=2"),
        ("(3,\\infty)\\cup(-\\infty,2)", "(-\\infty, 2) \\cup (3, +\\infty)"),
        ("(x,y) = (5, 8)", "(5,8)"),
        ("(1, 4.5)", "(1,\\frac{9}{2})"),
        ("9/\u221a23", "\\frac{9 \\sqrt{23}}{23}"),
        ("2.449489742783", "\\sqrt{6}"),
        ("576^{-1}", "\\frac{1}{576}"),
        ("1500", "1.5\\times10^{3}"),
        ("i(2-i)", "1+2i"),
        ("m+n=204", "204"),
        ("\\frac{\\sqrt3}{3} \\approx 0.577", "\\frac{1}{\\sqrt{3}}"),
        ("x \\approx 11", "11"),
        ("2x - y + 3 = 0", "y=2x+3"),
        ("50\\%", "\\frac{1}{\\sqrt{4}}"),
        ("8\\sqrt{10}\\text{ units}", "8\\sqrt{10}"),
        ("10 square cm", "10 cm^2"),
        ("(\\frac{1}{3}, -2)", "\\begin{pmatrix} 1/3 \\\\ -2 \\end{pmatrix}"),
        ("v = \\begin{bmatrix} 4 & 0 & 7 \\\\ \\end{bmatrix}", "(4, 0, 7)"),
        ("f(3) = 8", "8"),
        ("f(3) = 8", "f(3) = 2^3"),
        ("8:00", "8:00:00"),
        ("4210_{7}", "4210_7"),
        ("17_8", "15"),
        ("\\textbf{East}", "\\text{east}"),
        ("(x+1)^2", "x^2+2x+1"),
        ("22\\frac13\\pi", "\\frac{67\\pi}{3}"),
        ("5\\sqrt[3]4", "5 \\sqrt[3]{4}"),
        ("d/q", "\\frac{d}{q}"),
        ("26! \\times 33554432", "2^{25} \\cdot 26!"),
        ("\\sin(20)^\\circ", "\\sin 20^\\circ"),
        ("\\sin 20\\text{ degrees}", "\\sin 20^\\circ"),
        ("\\tan(20 + 30)^\\circ", "\\tan 50^\\circ"),
        ("\\sin(\\frac{45}{2})^\\circ", "\\sin 22.5^\\circ"),
        ("6\\text{cis }120^\\circ", "6\\operatorname{cis}\\frac{2\\pi}{3}"),
        ("30\\text{ degrees per sec}", "30"),
    ],
)
def test_equal(predicted, gold):
    assert same_answer(predicted, gold)


@pytest.mark.parametrize(
    ("predicted", "gold"),
    [
        ("\\frac{1\\pm\\sqrt{17}}{2}", ROOTS),
        ("\\frac{-1+\\sqrt{17}}{2}", ROOTS),
        ("2, 3", FOUR),
        ("2021", "\\pm 2021"),
        ("204, 205", "204"),
        ("203 \\text{ or } 204", "204"),
        ("(3,2)", "(2,3)"),
        ("[0,1)", "(0,1)"),
        ("(-\\infty,2]\\cup(3,\\infty)", "(-\\infty, 2) \\cup (3, \\infty)"),
        ("x=2, y=1", "x=1, y=2"),
        ("y = 5", "x = 5"),
        ("0.36338", "1-\\frac{2}{\\pi}"),
        ("2.449490", "\\sqrt{6}"),
        ("2.449489742799", "\\sqrt{6}"),
        ("62.831853", "20\\pi"),
        ("2^{25} \\cdot 26! + 1", "2^{25} \\cdot 26!"),  # relative difference below 10^-30
        ("2^{200}\\sqrt{2} + 1", "2^{200}\\sqrt{2}"),
        ("\\frac{1}{2006!}", "\\frac{1}{2004!}"),
        ("1 + \\frac{1}{\\mathrm{e}}", "1 - \\frac{1}{\\mathrm{e}}"),
        ("\\sqrt{x^2}", "x"),
        ("11a+c", "7 = 11a+c"),
        ("2x - y + 4 = 0", "y=2x+3"),
        ("5\\text{ million}", "5"),
        ("3\\mathrm{i}", "3"),
        ("10 meters", "10\\text{ cm}"),
        ("10 cm", "10 cm^2"),
        ("204", "204_5"),
        ("204_5", "204_6"),
        ("17_8", "17"),
        ("(1, 2)", "\\begin{pmatrix} 2 \\\\ 1 \\end{pmatrix}"),
        ("[1, 2)", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
        ("1, 2", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
        ("(1, 2)", "\\begin{pmatrix} 1 \\\\ 2 \\\\ 3 \\end{pmatrix}"),
        ("(1, 2, 3, 4)", "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}"),
        ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "\\begin{vmatrix} 1 & 2 \\\\ 3 & 4 \\end{vmatrix}"),
        ("\\begin{pmatrix} 1 & 2 \\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
        ("f(3) = 8", "f(4) = 8"),
        ("1:00", "12:00"),
        ("2:3", "3:2"),
        ("\\text{Dynamo}", "Monday"),
        ("f(y)", "f(x)"),
        ("1" + ",1" * 300, "1,2"),
        ("\\sin(20)^\\circ", "\\sin 20"),
        ("\\sin\\left(20\\right)^{\\circ}", "\\sin 20"),
        ("\\sin 20\\text{ degrees}", "\\sin 20"),
        ("\\operatorname{sin} 20^\\circ", "\\sin 20"),
        ("\\tan (20+30)^\\circ", "\\tan 50"),
        ("(\\sin(20)^\\circ, 3)", "(\\sin 20, 3)"),
        ("\\text{cis } 20^\\circ", "\\text{cis } 20"),
    ],
)
def test_not_equal(predicted, gold):
    assert not same_answer(predicted, gold)


integers = st.integers(-999, 999)


@given(st.lists(integers, min_size=2, max_size=5, unique=True), st.randoms(use_true_random=False))
def test_lists_are_equal_in_any_order_and_tuples_in_one(values, random_numbers):
    shuffled = values[:]
    random_numbers.shuffle(shuffled)
    text, other = (", ".join(map(str, items)) for items in (values, shuffled))
    assert same_shape(read_shape(text), read_shape(f"\\{{{other}\\}}"), str.__eq__) is True
    same = same_shape(read_shape(f"({text})"), read_shape(f"({other})"), str.__eq__)
    assert same is (values == shuffled)


@given(integers, integers.filter(bool))
def test_a_fraction_has_one_value_however_written(above, below):
    texts = (
        f"\\dfrac{{{above}}}{{{below}}}",
        f"$\\frac{{{above}}}{{{below}}}$.",
        f"\\boxed{{\\tfrac{{{above}}}{{{below}}}}}",
    )
    for text in texts:
        value = rational(normalize(text).text)
        assert value * below == above


def test_words_clocks_and_bases_abstain_where_they_do_not_apply():
    texts = [Answer(text) for text in ("ab", "ba", "sin", "3", "8:00 am", "8:00 pm", "29_8", "30_8")]
    ab, ba, sine, three, morning, evening, no_octal, octal = texts
    assert same_words(ab, ba) is None and same_words(sine, sine) is None and same_words(three, ab) is None
    assert same_words(Answer("(C)", is_text=True), Answer("c", is_text=True)) is True
    assert same_clock(three, three) is None and same_clock(morning, evening) is False
    assert same_in_base(three, three) is None and same_in_base(no_octal, octal) is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\\boxed{1}, \\boxed{2}", "1, 2"),
        ("$\\boxed{1}$ \\quad \\text{and} \\quad $\\boxed{2}$", "1, 2"),
        ("\\boxed{1} or \\boxed{2}", "1, 2"),
        ("\\boxed{1}. Wait, and now \\boxed{2}", "2"),
        ("\\boxed{1}\n\\boxed{2}", "2"),
        ("\\boxed{1} and so on for a very long stretch of words \\boxed{2}", "2"),
        ("none", None),
    ],
)
def test_boxes_in_a_row_are_a_list(text, expected):
    assert joined_answer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>203</answer> no, <answer>204</answer>", "204"),
        ("so\n#### 204", "204"),
        ("The final answer is $\\frac{1}{2}$. I hope", "\\frac{1}{2}"),
        ("cut in \\boxed{20", "20"),
        ("nothing", None),
    ],
)
def test_answers_without_a_box_that_cases_may_have(text, expected):
    assert tagged_answer(text) == expected


def test_a_text_without_a_tag_is_searched_by_math_verify():
    assert same_anywhere("so the sum is 35 + 70 = 105.", "105") is True
    assert same_anywhere("so the sum is 35 + 70 = 106.", "105") is False
    assert same_anywhere("no idea", "105") is None


@pytest.mark.parametrize("text", ["面積は7/12です。", "넓이는 7/12이다", "พื้นที่คือ7/12"])
def test_a_number_that_touches_a_script_without_blanks_is_found(text):
    assert same_anywhere(text, "7/12") is True
    assert same_anywhere(text, "5/12") is False


@pytest.mark.parametrize(
    ("text", "answer", "correct"),
    [
        ("g(t)=4 or g(t)=-6", "g(x) = -6 \\text{ and } g(x) = 4", True),
        ("g(t)=4", "g(x) = -6 \\text{ and } g(x) = 4", False),
        ("a = 3 and b = 5", "a = 5 \\text{ and } b = 3", False),
        ("so g is 4 or -6", "-6, 4", False),  # words: only its last number counts
    ],
)
def test_a_text_that_is_one_formula_is_its_own_answer(text, answer, correct):
    assert grade_anywhere(text, answer).correct is correct
