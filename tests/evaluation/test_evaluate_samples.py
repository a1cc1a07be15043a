"""Rows, lines and resuming: any order of samplers, any missing rows, and a verdict for each response."""

import json
import random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.samples import BlockSampler, Questions, RowSampler, Sampled, collect
from nemo_aopsd.manifest import Manifest
from nemo_aopsd.types import Generation, Sampling
from tests.evaluation.test_evaluate import PROBLEMS as FIVE
from tests.evaluation.test_evaluate import Guesser, Words

PROBLEMS = FIVE[:4]
PROMPTS = [[problem.problem] for problem in PROBLEMS]
SAMPLING = Sampling(max_new_tokens=9)


class Shuffling(Guesser):
    """A seed a row, and rows that end in any order."""

    def __init__(self, order=0, stop_after=None):
        super().__init__()
        self.order, self.stop_after = order, stop_after

    def stream(self, prompts, sampling, seeds):
        rows = random.Random(self.order).sample(range(len(prompts)), len(prompts))
        for done, row in enumerate(rows):
            if done == self.stop_after:
                raise KeyboardInterrupt
            yield row, self._guess(prompts[row][-1], random.Random(seeds[row]))


def gather(path, sampler, problems=PROBLEMS, prompts=PROMPTS, num_samples=3):
    words: Any = Words()
    asked = Questions(problems, prompts, num_samples, words, [])
    return collect(Manifest(path.parent), path, asked, sampler, "evaluate")


def blocks(model=None, size=5):
    return BlockSampler(cast(Any, model or Guesser()), SAMPLING, 7, size)


def test_lines_of_rows_that_end_in_any_order_are_put_in_order(tmp_path):
    files = []
    for order in range(3):
        path = tmp_path / f"{order}.jsonl"
        lines = gather(path, RowSampler(Shuffling(order), SAMPLING, 7))
        assert [(line["problem_id"], line["sample"]) for line in lines] == [
            (p.id, i) for p in PROBLEMS for i in range(3)
        ]
        assert [json.loads(line) for line in path.read_text().splitlines()] == lines
        assert len({line["seed"] for line in lines}) == 12
        files.append(path.read_bytes())
    assert len(set(files)) == 1


@pytest.mark.parametrize("stop_after", [0, 1, 5, 11])
def test_rows_are_kept_one_by_one(tmp_path, stop_after):
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    gather(whole, RowSampler(Shuffling(1), SAMPLING, 7))
    with pytest.raises(KeyboardInterrupt):
        gather(cut, RowSampler(Shuffling(2, stop_after), SAMPLING, 7))
    assert (len(cut.read_text().splitlines()) if cut.exists() else 0) == stop_after
    gather(cut, RowSampler(Shuffling(3), SAMPLING, 7))
    assert cut.read_bytes() == whole.read_bytes()


@settings(deadline=None)
@given(kept=st.sets(st.integers(0, 11)))
def test_any_missing_rows_of_blocks_are_made_again_as_they_were(tmp_path_factory, kept):
    folder = tmp_path_factory.mktemp("rows")
    gather(folder / "whole.jsonl", blocks())
    lines = (folder / "whole.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "part.jsonl").write_bytes(b"".join(lines[row] for row in sorted(kept)))
    model = Guesser()
    gather(folder / "part.jsonl", blocks(model))
    assert (folder / "part.jsonl").read_bytes() == b"".join(lines)
    assert len(model.calls) == len({row // 5 for row in set(range(12)) - kept})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"problem_id": "p9", "sample": 0}, r"samples\.jsonl:13: belongs to no row"),
        ({}, r"samples\.jsonl:13: belongs to no row"),
        ({"problem_id": "p1", "sample": 1}, r"samples\.jsonl:13: repeats a row"),
    ],
)
def test_foreign_lines_are_refused(tmp_path, line, message):
    path = tmp_path / "samples.jsonl"
    gather(path, blocks())
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(UserError, match=message):
        gather(path, blocks())


def test_an_answer_inside_of_a_thought_that_the_prompt_opens_is_none(tmp_path):
    def think(prompts, missing):
        for row, words in enumerate((["\\boxed{0}"], ["hm</think>", "\\boxed{0}"])):
            tokens: list[Any] = words
            yield [Sampled(row, Generation(tokens, True), 0)]

    lines = gather(tmp_path / "samples.jsonl", think, PROBLEMS[:1], [[PROBLEMS[0].problem, "<think>"]], 2)
    assert [line["correct"] for line in lines] == [False, True]


def test_a_sampler_that_leaves_rows_out_is_a_bug(tmp_path):
    def lazy(prompts, missing):
        tokens: list[Any] = ["x"]
        yield [Sampled(missing[0], Generation(tokens, True), 0)]

    with pytest.raises(KeyError):
        gather(tmp_path / "samples.jsonl", lazy)
