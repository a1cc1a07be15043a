"""Reading models' answers: JSON out of prose, LaTeX through JSON, and the form that was asked for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_aopsd.chat.protocol import Completion
from nemo_aopsd.data.dag import Fault
from nemo_aopsd.graphs.pipeline.parse import read_object
from nemo_aopsd.graphs.pipeline.stages import SCHEMAS, read_dense

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


def test_earlier_drafts_are_passed_over():
    text = '{"plan": ["first"]} no, better: {"plan": ["second"]} {"other": 1}'
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
        ('{"plan":[' * 10_000, "unreadable"),
        *(('{"plan": ' + "[" * depth + "]" * depth + "}", "unreadable") for depth in (200, 990, 100_000)),
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
    [fault] = read_dense(Completion(json.dumps({"checkpoints": checkpoints}), "stop", None)).faults
    assert fault.kind == "malformed" and fault.detail.startswith("checkpoints")


def test_numbers_serve_as_ids_and_repeated_prerequisites_count_once():
    checkpoints = [
        {"id": 1, "statement": "a", "requires": [], "note": "not asked for"},
        {"id": "2", "statement": "b", "requires": [1, "1"]},
    ]
    draft = read_dense(Completion(json.dumps({"checkpoints": checkpoints}), "stop", None))
    assert draft.faults == [] and draft.graph is not None and list(draft.graph.edges) == [("1", "2")]


def objects_of(schema):
    return [part for part in [schema, *schema.get("$defs", {}).values()] if part["type"] == "object"]


@pytest.mark.parametrize("stage", SCHEMAS)
def test_schemas_are_strict_and_tell_nothing_else(stage):
    """As servers ask for it: every property is required, and no other may be there."""
    for part in objects_of(SCHEMAS[stage]):
        assert part["additionalProperties"] is False and set(part["required"]) == set(part["properties"])
        assert "description" not in part
