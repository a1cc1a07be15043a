"""Only a finished answer outside of thoughts counts, in the markup of each common family."""

import json

import pytest

from nemo_aopsd.analysis.audit.judge import read_label
from nemo_aopsd.chat.protocol import Completion
from nemo_aopsd.graphs.pipeline.stages import read_contexts, read_dense, read_verdict
from nemo_aopsd.method.judge import parse_verdict
from nemo_aopsd.thoughts import after_thoughts, final_answer, is_thought_mark, opened_thought, whole_text
from tests.fakes import CharTokenizer

FAMILIES = [  # (opening, closing)
    ("<think>", "</think>"),
    ("<THINK>", "</THINK>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|channel|>commentary to=x<|message|>", "<|channel|>final <|constrain|>json<|message|>"),
    ("<|channel>thought\n", "<channel|>"),
]


@pytest.mark.parametrize(("opening", "closing"), FAMILIES)
def test_nothing_inside_thoughts_is_left(opening, closing):
    assert after_thoughts(f"{opening}A{closing}B") == "B"
    assert after_thoughts(f"A{closing}B") == "B"  # the prompt opened it
    assert after_thoughts(f"{opening}A") == after_thoughts(f"{opening}A{closing}B{closing}") == ""
    assert after_thoughts(f"{opening}A{closing}B{opening}C") == "B"


@pytest.mark.parametrize("text", ["I think [1]", "1 < think > 2", "[think]ing", "a </ b", "<attempt>x</attempt>"])
def test_plain_text_stays(text):
    assert after_thoughts(text) == text


def test_a_text_that_was_cut_off_has_no_answer():
    assert (final_answer("<think>a</think>b", finished=True), final_answer("b", finished=False)) == ("b", None)
    assert final_answer("<think>only", finished=True) == ""


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("user\nassistant\n<think>\n", "<think>"),
        ("assistant\n[THINK]", "[THINK]"),
        ("assistant\n<think>\n\n</think>\n\n", ""),  # thinking is switched off
        ("say <think>, assistant\n", ""),
    ],
)
def test_a_thought_that_the_prompt_opens_belongs_to_the_response(prompt, opened):
    tokenizer = CharTokenizer()
    assert opened_thought(tokenizer.encode(prompt), tokenizer) == opened
    assert whole_text(tokenizer.encode(prompt), tokenizer.encode("[1]"), tokenizer) == f"{opened}[1]"


def test_which_special_tokens_belong_to_thoughts():
    marks = ("<think>", "</think>", "[/THINK]", "<|channel|>", "<|message|>", "<|END_THINKING|>", "<channel|>")
    assert all(map(is_thought_mark, marks))
    assert not any(map(is_thought_mark, ("<|im_end|>", "<s>", "</s>", "<|start|>", "<pad>", "[INST]")))


GRAPH = {"checkpoints": [{"id": "1", "statement": "x", "requires": []}]}
READERS = {  # reader of a completion: an answer that it reads, and whether it did
    "judge": ('["1"]', lambda found: parse_verdict(found.answer, {"1"}) is not None),
    "audit": ('{"reason": "r", "label": "useful"}', lambda found: read_label(found.answer) is not None),
    "judge of graphs": ('{"verdict": "accept", "defects": []}', lambda found: read_verdict(found) is not None),
    "graph": (json.dumps(GRAPH), lambda found: read_dense(found).graph is not None),
    "contexts": ('{"plan": ["a"], "subproblems": ["b"]}', lambda found: isinstance(read_contexts(found, "7"), dict)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("opening", "closing"), FAMILIES)
def test_every_reader_takes_a_finished_answer_outside_of_thoughts_and_no_other(reader, opening, closing):
    answer, reads = READERS[reader]
    for text in (answer, f"{opening}hm{closing}{answer}", f"{opening}{answer[:3]}{closing}{answer}"):
        assert reads(Completion(text, "stop", None))
        for cut in ("length", "max_tokens", "content_filter"):
            assert not reads(Completion(text, cut, None))
    for text in (
        f"{opening}{answer}",
        f"{opening}{answer} Now look at 1: the attempt never",
        f"{opening}{answer}{closing}",
    ):
        assert not reads(Completion(text, "stop", None))
