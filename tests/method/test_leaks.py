"""The leak meter: hits on talk of a private context, no hits on honest mathematics."""

import json

import pytest

from nemo_aopsd import prompts
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.leaks import leak_patterns, mentions_context
from tests import SHARED

PATTERNS = leak_patterns("default")


TALK = """\
According to the DAG, x = 3.
I follow the private reasoning DAG node by node.
The Given DAG says so.
This matches the reference solution.
the provided solution uses symmetry
As stated in the solution, we halve it.
Based on the plan, I start with x.
the plan says to factor first
Like in the worked example, try small cases.
By checkpoint [3] the area is 12.
[3] the area is 12 (requires: 1, 2)
the private hint tells me"""
HONEST = """\

From the given equation and the given graph, x = 3.
Substitute into the provided formula.
Using the hint, draw the reference line and the private road.
The above solution is unique; my solution is complete.
Here is my plan: factor first.
Consider a directed acyclic graph G with node 3 in it.
The solution of the equation is [3, 5].
For example, this works.
The proof is by induction."""


def test_talk_of_a_private_context_is_a_hit_and_honest_mathematics_is_none():
    assert [text for text in TALK.split("\n") if not mentions_context(text, PATTERNS)] == []
    assert [text for text in HONEST.split("\n") if mentions_context(text, PATTERNS)] == []


@pytest.mark.parametrize("name", ["teacher_dag", "teacher_solution", "teacher_other_problem"])
def test_quoting_the_teachers_block_is_a_hit(name):
    """The wording of a prompt and of the meter belong together."""
    assert mentions_context(prompts.read("default", name), PATTERNS)


def test_a_family_of_ones_own_and_its_faults(tmp_path):
    with pytest.raises(UserError, match=r"leaks\.txt"):
        leak_patterns(str(tmp_path))
    (tmp_path / "leaks.txt").write_text("# comment\n\n secret \\d\n", encoding="utf-8")
    [pattern] = leak_patterns(str(tmp_path))
    assert pattern.search("the SECRET 7") and not pattern.search("a secret")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/leaks.txt").write_text("fine\n(broken\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"line 2: .*\(broken"):
        leak_patterns(str(tmp_path / "other"))


@pytest.mark.parametrize("name", ["aime_1983_2023_train", "limo_v2_subset40"])
def test_false_alarms_on_texts_that_saw_no_context_are_rare(name):
    path = SHARED / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"needs {path}")
    texts = [json.loads(line)["solution"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert sum(mentions_context(text, PATTERNS) for text in texts) <= 0.002 * len(texts)
