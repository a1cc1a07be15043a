"""Evaluation: hand-counted summaries, the same bytes after any interruption, refusal of foreign samples."""

import json
import os
import random
import re
import shutil
import sys
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_aopsd.config.schema import EvaluationConfig
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation import epochs as module
from nemo_aopsd.evaluation.epochs import evaluate, paired_interval
from nemo_aopsd.manifest import NAME, Manifest
from nemo_aopsd.prompts import fill
from nemo_aopsd.types import Generation

PROBLEMS = [Problem(id=f"p{i}", problem=f"What is {i} + 0?", answer=str(i), where="x:1") for i in range(5)]
CONFIG = EvaluationConfig(num_samples=3, temperature=0.5, top_p=0.9, top_k=7, max_new_tokens=11)
FILES = ["epoch_002.json", "epoch_002.jsonl", "epoch_002.settings.json", NAME]


class Words:
    """A token is its own text."""

    def render(self, messages, thinking):
        return [f"thinking={thinking}", *(message["content"] for message in messages)]

    def render_all(self, conversations, thinking):
        return [self.render(messages, thinking) for messages in conversations]

    def decode(self, tokens):
        return " ".join(tokens)


class Guesser:
    """Answers the question, right or one too high, from a generator of its own for (seed, row)."""

    def __init__(self, fail_after=None):
        self.calls, self.fail_after = [], fail_after

    def generate(self, prompts, sampling, seed):
        if len(self.calls) == self.fail_after:
            raise KeyboardInterrupt
        self.calls.append((prompts, sampling, seed))
        return [self._guess(prompt[-1], random.Random(f"{seed}/{row}")) for row, prompt in enumerate(prompts)]

    def _guess(self, question, rng):
        number = int(re.findall(r"What is (\d+)", question)[0]) + rng.randrange(2)
        words: list[Any] = ["the answer"] * rng.randrange(1, 5)
        words.append(f"\\boxed{{{number}}}")
        return Generation(words, rng.random() < 0.7)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_SIZE", 4)  # 15 rows: three blocks of four and one of three


def run(out, model: Any = None, config=CONFIG, problems=PROBLEMS, seed=3, thinking=None, **options):
    guesser, tokenizer = cast(Any, model or Guesser()), cast(Any, Words())
    return evaluate(
        guesser,
        tokenizer,
        problems,
        config,
        prompts="default",
        thinking=thinking,
        seed=seed,
        manifest=Manifest(out),
        out=out,
        epoch=2,
        **options,
    )


def contents(out):
    found = {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.name != NAME}
    summary = json.loads(found["epoch_002.json"])
    assert summary.pop("seconds") >= 0
    return found | {"epoch_002.json": summary}


def test_lines_and_summary_agree_with_what_was_sampled(tmp_path):
    model = Guesser()
    summary = run(tmp_path, model, thinking=False)
    assert [len(prompts) for prompts, _, _ in model.calls] == [4, 4, 4, 3]
    assert len({seed for _, _, seed in model.calls}) == 4
    for _, sampling, _ in model.calls:
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_new_tokens) == (0.5, 0.9, 7, 11)
    asked = [prompt for prompts, _, _ in model.calls for prompt in prompts]
    questions = [["thinking=False", fill("default", "student", problem=p.problem)] for p in PROBLEMS for _ in range(3)]
    assert asked == questions

    lines = [json.loads(line) for line in (tmp_path / "epoch_002.jsonl").read_text().splitlines()]
    assert [(line["problem_id"], line["sample"]) for line in lines] == [(p.id, i) for p in PROBLEMS for i in range(3)]
    assert [line["seed"] for line in lines] == [seed for prompts, _, seed in model.calls for _ in prompts]
    for line in lines:
        assert line["correct"] == line["response_text"].endswith(f"\\boxed{{{line['problem_id'][1:]}}}")
        assert line["reason"] == ("correct" if line["correct"] else "wrong")
        assert line["num_tokens"] == line["response_text"].count("the answer") + 1
    counts = {p.id: sum(line["correct"] for line in lines if line["problem_id"] == p.id) for p in PROBLEMS}
    assert 0 < sum(counts.values()) < 15  # the guesser is neither always right nor always wrong
    assert summary["correct_per_problem"] == counts
    assert summary["pass_at_k"]["1"] == pytest.approx(sum(counts.values()) / 15)
    assert summary["pass_at_k"]["3"] == sum(count > 0 for count in counts.values()) / 5
    assert summary["truncation_rate"] == pytest.approx(sum(not line["finished"] for line in lines) / 15)
    assert summary["mean_tokens"] == pytest.approx(sum(line["num_tokens"] for line in lines) / 15)
    assert (summary["epoch"], summary["num_problems"], summary["num_samples"]) == (2, 5, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    assert json.loads((tmp_path / "epoch_002.json").read_text()) == summary


def test_a_leak_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(Words, "decode", lambda self, tokens: "According to the DAG, \\boxed{0}")
    assert run(tmp_path)["leak_rate"] == 1.0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_SIZE", 4)
        out = tmp_path_factory.mktemp("straight")
        run(out)
    return out


@settings(max_examples=40)
@given(cut=st.integers(0, 2000))
def test_cut_at_any_byte_gives_the_same_bytes(tmp_path_factory, uninterrupted, cut):
    out = tmp_path_factory.mktemp("cut")
    shutil.copytree(uninterrupted, out, dirs_exist_ok=True)
    (out / "epoch_002.json").unlink()
    samples = out / "epoch_002.jsonl"
    whole, manifest = samples.read_bytes(), Manifest(out)
    os.truncate(samples, min(cut, len(whole)))
    lines = [json.loads(line) for line in manifest.path.read_text().splitlines()]
    begun = [line for line in lines if line["at"] <= cut and line["file"] != "epoch_002.json"]
    manifest.path.write_text("".join(json.dumps(line) + "\n" for line in begun))
    assert manifest.check([]) == []
    ends = [line["at"] + line["size"] for line in begun if line["file"] == samples.name]
    complete = whole[: max([0, *(end for end in ends if end <= cut)])].count(b"\n")  # of whole blocks
    rest = Guesser()
    run(out, rest)
    assert len(rest.calls) == (0 if complete == 15 else 4 - complete // 4)
    assert contents(out) == contents(uninterrupted)


def test_a_finished_evaluation_is_not_repeated(tmp_path, uninterrupted):
    shutil.copytree(uninterrupted, tmp_path, dirs_exist_ok=True)
    again, moved = Guesser(), replace(CONFIG, data_path="moved.jsonl", period=5)  # neither changes a sample
    assert run(tmp_path, again, config=moved) == json.loads((uninterrupted / "epoch_002.json").read_text())
    assert again.calls == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 4}, "another seed"),
        ({"config": replace(CONFIG, num_samples=4)}, "num_samples 3 -> 4"),
        ({"config": replace(CONFIG, max_new_tokens=12)}, "max_new_tokens 11 -> 12"),
        ({"weights": "step_000009"}, "weights '' -> 'step_000009'"),
        ({"thinking": True}, "prompts_and_answers '"),
        ({"problems": [replace(PROBLEMS[0], answer="1"), *PROBLEMS[1:]]}, "prompts_and_answers '"),
    ],
)
def test_samples_of_other_settings_are_refused_and_kept(tmp_path, uninterrupted, changed, named):
    shutil.copytree(uninterrupted, tmp_path, dirs_exist_ok=True)
    if "seed" in changed:  # an unfinished evaluation is refused, too
        (tmp_path / "epoch_002.json").unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=re.escape(named)) as caught:
        run(tmp_path, **changed)
    assert "epoch_002.jsonl: made with other settings" in str(caught.value)
    assert "delete epoch_002.* there" in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["epoch_002.settings.json", "epoch_002.json"])
def test_damaged_settings_and_summaries_are_named(tmp_path, uninterrupted, name):
    shutil.copytree(uninterrupted, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_bytes(b'{"seed": "\xe9"}')
    with pytest.raises(UserError, match=rf"{re.escape(name)}: broken JSON: .* (to start over|made anew)\."):
        run(tmp_path)


def test_samples_of_unknown_origin_are_refused(tmp_path, uninterrupted):
    shutil.copy(uninterrupted / "epoch_002.jsonl", tmp_path)
    with pytest.raises(UserError, match=r"epoch_002\.jsonl: .* epoch_002\.settings\.json"):
        run(tmp_path)


def test_a_broken_line_is_named(tmp_path, uninterrupted):
    shutil.copytree(uninterrupted, tmp_path, dirs_exist_ok=True)
    (tmp_path / "epoch_002.json").unlink()
    lines = (tmp_path / "epoch_002.jsonl").read_bytes().split(b"\n")
    (tmp_path / "epoch_002.jsonl").write_bytes(b"\n".join([lines[0], b"{oops", *lines[2:]]))
    with pytest.raises(UserError, match=r"epoch_002\.jsonl:2: broken JSON"):
        run(tmp_path)


def test_there_is_a_bar_on_a_terminal_and_a_line_elsewhere(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    for name in ("shown", "told"):
        (tmp_path / name).mkdir()
    run(tmp_path / "shown")
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert re.search(r"evaluation, responses \W+ 15/15 \d", shown)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    run(tmp_path / "told")
    assert capsys.readouterr() == ("", "evaluation, responses: 15 to go\n")


def test_paired_interval_by_hand():
    before = {"epoch": 0, "num_samples": 2, "correct_per_problem": {"a": 0, "b": 1, "c": 2}}
    after = {"epoch": 1, "num_samples": 4, "correct_per_problem": {"c": 4, "b": 3, "a": 1}}
    # differences 0.25, 0.25, 0 in the order a, b, c: all of 27 resamples lie in [0, 0.25], 8 and 1 of them at the ends
    assert paired_interval(before, after) == (0.0, 0.25)
    assert paired_interval(before, before) == (0.0, 0.0)


def test_paired_interval_needs_the_same_problems():
    one = {"epoch": 0, "num_samples": 1, "correct_per_problem": {"a": 0}}
    two = {"epoch": 3, "num_samples": 1, "correct_per_problem": {"a": 0, "b": 1}}
    with pytest.raises(UserError, match=r"epochs 0 and 3: 1 problems .* 'b'"):
        paired_interval(one, two)
