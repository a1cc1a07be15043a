"""Reading models' answers: JSON out of prose, LaTeX through JSON, and the answer by its value."""

import doctest
import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_aopsd.chat import client, endpoint, protocol
from nemo_aopsd.data import prepare as data_prepare
from nemo_aopsd.data.closed_form import closed_form
from nemo_aopsd.data.dag import Fault, build_graph
from nemo_aopsd.data.leaks import find_answer_leaks, states_answer
from nemo_aopsd.grading.normalize import normalize
from nemo_aopsd.graphs.pipeline import parse
from nemo_aopsd.graphs.pipeline.parse import read_checkpoints, read_object
from tests import SHARED


@pytest.mark.parametrize("module", [client, endpoint, protocol, parse, data_prepare])
def test_examples_in_docstrings(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\\\b\f\t\r\n\u2212"))


@given(
    TEXTS.map(lambda text: " ".join(text.split())),
    TEXTS.map(lambda text: text.translate(dict.fromkeys(map(ord, '{}<>"')))),
)
def test_object_is_found_in_any_prose(statement, prose):
    answer = {"plan": [statement]}
    assert read_object(f"{prose}\n```json\n{json.dumps(answer)}\n```{prose}", "plan") == answer


LATEX = [
    r"\frac{1}{2}",
    r"\sqrt{2}",
    r"\theta = \beta + \rho",
    r"\nu \neq \nabla f",
    r"a \times b \cdot c",
    r"\{1, 2\} \subset \mathbb{R}",
    r"\underline{x} \uparrow y",
    r"\binom{n}{k} \boxed{7}",
    r"\left( x \right)",
]


@pytest.mark.parametrize("latex", LATEX)
def test_latex_survives_with_one_backslash_and_with_two(latex):
    for text in ('{"plan": ["' + latex + '"]}', json.dumps({"plan": [latex]})):
        assert read_object(text, "plan") == {"plan": [latex]}


def test_line_breaks_in_a_string_are_spaces():
    assert read_object('{"plan": ["first\\nsecond", "x\ny"]}', "plan") == {"plan": ["first second", "x y"]}


def test_thoughts_and_earlier_drafts_are_passed_over():
    text = '<think>{"plan": ["draft"]}</think> {"plan": ["first"]} no, better: {"plan": ["second"]} {"other": 1}'
    assert read_object(text, "plan") == {"plan": ["second"]}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "unreadable"),
        ("no JSON", "unreadable"),
        ('["plan"]', "unreadable"),
        ('{"other": 1}', "unreadable"),
        ('{"plan": ["a", "b', "cut_short"),
        ("{" * 100_000, "cut_short"),
        ('{"plan":[' * 10_000, "cut_short"),
        ("[" * 100_000, "unreadable"),
    ],
)
def test_what_cannot_be_read_says_why(text, kind):
    found = read_object(text, "plan")
    assert isinstance(found, Fault) and found.kind == kind


def test_half_a_surrogate_pair_becomes_a_replacement_character():
    assert read_object('{"plan": ["\\ud835 x"]}', "plan") == {"plan": ["\ufffd x"]}


@pytest.mark.parametrize(
    "checkpoints",
    [
        "none",
        ["1: x"],
        [{"id": "1"}],
        [{"id": True, "statement": "x", "requires": []}],
        [{"id": "1", "statement": "x"}],
        [{"id": "1", "statement": "x", "requires": "2"}],
        [{"id": "1", "statement": "x", "requires": [["2"]]}],
    ],
)
def test_malformed_checkpoints(checkpoints):
    assert read_checkpoints({"checkpoints": checkpoints}).kind == "malformed"


def test_numbers_serve_as_ids_and_repeated_prerequisites_count_once():
    found = read_checkpoints(
        {
            "checkpoints": [
                {"id": 1, "statement": "a", "requires": []},
                {"id": "2", "statement": "b", "requires": [1, "1"]},
            ]
        }
    )
    assert found["edges"] == [["1", "2"]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("60", (60, 1)),
        ("060", (60, 1)),
        ("−3", (-3, 1)),
        ("1,234,567", (1234567, 1)),
        ("1{,}024", (1024, 1)),
        ("0.50", (1, 2)),
        (r"\dfrac{\frac{1}{2}}{3}", (1, 6)),
        (r"2^3 \cdot 13", (104, 1)),
        (r"\left(\frac{2}{3}\right)^{2}", (4, 9)),
        (r"25\%", (1, 4)),
        ("$7$", (7, 1)),
        (r"\boxed{7}", (7, 1)),
        (r"90^\circ", (90, 1)),
        ("((1)/(2))", (1, 2)),
    ],
)
def test_values_of_plain_arithmetic(text, value):
    given = normalize(text.replace("\u2212", "-"))
    assert closed_form(given.text) / (100 if given.percent else 1) == value[0] / Fraction(value[1])


@pytest.mark.parametrize(
    "text", ["", "x", "1/0", "2**", "9^{9^9}", "(" * 200, "1 2", "().__class__", "1,2", "10^{9999}", "0x10"]
)
def test_no_value_and_no_harm(text):
    found = closed_form(text)
    assert found is None or not math.isfinite(found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt3}{2}"),
        (r"\frac{\pi}{2}", r"\pi/2"),
        (r"\sqrt{3600}", "60"),
        ("0.33", r"\frac{1}{3}"),
        ("2^{99}", "2^99"),
        ("x+1", "x + 1"),
    ],
)
def test_same_values(one, other):
    assert states_answer(f"It is {one}", other, is_last=True)


@pytest.mark.parametrize(
    ("one", "other"), [("60", "61"), ("0.3", r"\frac{1}{3}"), ("x", "60"), (r"\pi", "3"), ("", "0")]
)
def test_different_values(one, other):
    assert not states_answer(f"It is {one}", other, is_last=True)


@pytest.mark.parametrize(
    ("statement", "answer", "is_last", "leaks"),
    [
        ("Hence the answer is 2^3*13.", "104", False, True),
        (r"So \boxed{0.5}", r"\frac{1}{2}", False, True),
        ("x = 2", "2", False, False),  # a small number on the way
        ("x = 2", "2", True, True),
        ("x = 104", "104", False, True),  # no coincidence
        ("x = 105", "104", True, False),
        ("The matrix is A", "A", False, False),
        ("The choice is A", "A", True, True),
        ("c = \\sqrt{2} + 1", "\\sqrt{2}+1", False, True),
        ("The area is 60 square cm.", "60", True, True),
        ("There are 360 ways in all to do it", "360", True, True),
        ("The sum is at most 1360", "360", True, False),
        ("x^360 = 1", "360", True, False),
        ("The volume is (1/3)*15*DH", "20", True, False),
        ("z = −3", "-3", True, True),
        ("The answer follows from the sum of the two areas", "104", True, False),
    ],
)
def test_statements(statement, answer, is_last, leaks):
    assert states_answer(statement, answer, is_last=is_last) is leaks


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data not present")
def test_reference_graphs_pass_and_leak_once_their_answer_is_added():
    for line in (SHARED / "reasoning_dags.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        graph = build_graph(row["dag"], row["answer"])
        assert list(find_answer_leaks(graph, row["answer"])) == []
        graph.add_node("last", statement=f"The wanted number is {row['answer']}")
        assert [fault.kind for fault in find_answer_leaks(graph, row["answer"])] == ["states_answer"]
