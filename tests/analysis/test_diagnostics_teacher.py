"""Teacher answers on file and their utility: a scripted engine whose answers depend on what it reads."""

import json
import os
import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from nemo_aopsd import engines
from nemo_aopsd.analysis.diagnostics import teacher
from nemo_aopsd.analysis.diagnostics.teacher import evaluate_teacher, plan_teacher, utility
from nemo_aopsd.cli.diagnose import app as diagnose_app
from nemo_aopsd.config.load import load_config, to_yaml
from nemo_aopsd.config.schema import AOPSDConfig, ContextConfig, EvaluationConfig
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import write_jsonl
from nemo_aopsd.manifest import Manifest
from nemo_aopsd.run.own_files import check_shown, keep_extensions
from nemo_aopsd.types import Generation
from tests.diagnosed import write_config
from tests.fakes import END, CharTokenizer, make_config
from tests.run import read

TOKENIZER = CharTokenizer()
PARTS = Path(__file__).parents[2] / "examples/my_parts.py"


class Scripted:
    """Says what `answer(prompt text, rng)` returns; notes the prompts. Fails at the `fail_at`-th call."""

    def __init__(self, answer, fail_at=None):
        self.answer, self.fail_at, self.prompts, self.calls = answer, fail_at, [], 0

    def generate(self, prompts, sampling, seed):
        self.calls += 1
        if self.calls == self.fail_at:
            raise KeyboardInterrupt
        texts = [TOKENIZER.decode(prompt) for prompt in prompts]
        self.prompts += texts
        return [
            Generation([*TOKENIZER.encode(self.answer(text, random.Random(f"{seed}/{row}"))), END], True)
            for row, text in enumerate(texts)
        ]


class ScriptedEngine:
    def __init__(self, student, teacher):
        self.tokenizer, self.student, self.teacher = TOKENIZER, student, teacher


def attempt(text, rng):
    """The student attempts something; as a judge it says that a holds where the attempt says so."""
    if text.startswith("You check"):
        return '["a"]' if "has a" in text else "[]"
    return rng.choice(["has a", "has nothing"])


def answer(text, rng):
    """Right with a graph or a solution in the prompt, else one time in four; the answer is the question's number."""
    number = re.search(r"Say (\d+)", text)[1]
    informed = "reasoning DAG" in text or "reference solution" in text
    return rf"\boxed{{{number}}}" if informed or rng.random() < 0.25 else r"\boxed{0}"


def write_problems(path, count, without_dag=0):
    graph = {"nodes": [{"id": "a", "statement": "first"}, {"id": "b", "statement": "second"}], "edges": [["a", "b"]]}
    rows = []
    for index in range(1, count + 1):
        row = {"id": f"p{index}", "problem": f"Say {index}.", "answer": str(index), "solution": "Easy."}
        rows.append(row | ({"dag": graph} if index > without_dag else {}))
    write_jsonl(path, rows)
    return path


def make_plan(tmp_path, kind, num_samples=4, count=5, without_dag=0):
    data = write_problems(tmp_path / "held.jsonl", count, without_dag)
    aopsd = AOPSDConfig(
        context=ContextConfig(kind=kind),
        evaluation=EvaluationConfig(data_path=str(data), num_samples=num_samples, max_new_tokens=3000),
    )
    config = make_config(tmp_path / "run", aopsd, model_name="m")
    return plan_teacher(tmp_path / "run", config, None, None), config


@pytest.mark.parametrize("kind", ["solution", "dag_full", "dag_frontier", "other_problem"])
def test_a_teacher_answers_with_its_context_and_without(tmp_path, kind):
    plan, config = make_plan(tmp_path, kind)
    engine = ScriptedEngine(Scripted(attempt), Scripted(answer))
    alone = evaluate_teacher(plan, "none", config, engine)
    assert all("===" not in text for text in engine.teacher.prompts)
    informed = evaluate_teacher(plan, kind, config, engine)
    shown = engine.teacher.prompts[20:]
    assert len(shown) == 20 and all("===" in text for text in shown)
    if kind != "other_problem":
        assert informed["correct_per_problem"] == {f"p{index}": 4 for index in range(1, 6)}
    assert 0 < sum(alone["correct_per_problem"].values()) < 20
    lines = read(plan.folder / f"{kind}.jsonl")
    assert [(line["problem_id"], line["sample"]) for line in lines] == [
        (f"p{i}", s) for i in range(1, 6) for s in range(4)
    ]
    again = Scripted(answer)
    assert evaluate_teacher(plan, kind, config, ScriptedEngine(again, again)) == informed and again.calls == 0


def test_a_context_of_ones_own_has_files_by_its_class(tmp_path):
    """Wherever its file is: nothing is written beside that."""
    file = tmp_path / "mine/parts.py"
    file.parent.mkdir()
    file.write_text(PARTS.read_text().replace("adaptive = True", "adaptive = False"))
    plan, config = make_plan(tmp_path, f"{file}:FirstCheckpoint")
    evaluate_teacher(plan, f"{file}:FirstCheckpoint", config, ScriptedEngine(Scripted(attempt), Scripted(answer)))
    assert {path.name for path in plan.folder.glob("First*")} == {
        f"FirstCheckpoint{suffix}" for suffix in (".jsonl", ".json", ".settings.json")
    }
    assert [path.name for path in file.parent.glob("*.*")] == ["parts.py"]


def test_what_the_teacher_read_cannot_be_made_again_by_a_class_that_has_changed(tmp_path):
    config = load_config(write_config(tmp_path) / "config.yaml", [f"aopsd.context.kind={PARTS}:FirstCheckpoint"])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    keep_extensions(tmp_path, config.aopsd)
    check_shown(tmp_path, config.aopsd)
    kept = tmp_path / "extensions/my_parts.py"
    kept.write_text(kept.read_text() + "\n")
    result = CliRunner().invoke(diagnose_app, ["teacher", str(tmp_path)])
    assert "has changed since the run began (aopsd.context.kind)" in str(result.exception)
    check_shown(tmp_path, replace(config.aopsd, context=ContextConfig(), weighting=f"{PARTS}:RisingWeights"))


def test_under_the_frontier_each_sample_has_what_its_own_attempt_reached(tmp_path):
    plan, config = make_plan(tmp_path, "dag_frontier")
    engine = ScriptedEngine(Scripted(attempt), Scripted(answer))
    evaluate_teacher(plan, "dag_frontier", config, engine)
    attempts = [text for text in engine.student.prompts if text.startswith("You check")]
    reached = ["has a" in text for text in attempts]
    assert len(reached) == 20 and 0 < sum(reached) < 20
    # a reached: a and its successor b are disclosed; nothing reached: only the root a
    assert ["second" in text for text in engine.teacher.prompts] == reached
    assert all("first" in text for text in engine.teacher.prompts)


@pytest.mark.parametrize("kind", ["none", "dag_frontier"])
def test_an_interrupted_teacher_ends_in_the_same_bytes(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(teacher, "BLOCK_SIZE", 6)
    whole, config = make_plan(tmp_path, "dag_frontier")
    evaluate_teacher(whole, kind, config, ScriptedEngine(Scripted(attempt), Scripted(answer)))
    cut = replace(whole, folder=tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        evaluate_teacher(cut, kind, config, ScriptedEngine(Scripted(attempt), Scripted(answer, fail_at=3)))
    assert len((cut.folder / f"{kind}.jsonl").read_text().splitlines()) == 12
    samples = cut.folder / f"{kind}.jsonl"
    Manifest(cut.folder).append(samples, [{"problem_id": "p4", "sample": 0}])
    os.truncate(samples, samples.stat().st_size - 9)  # as a kill leaves it
    assert not (cut.folder / f"{kind}.json").exists()
    late = Scripted(answer)
    evaluate_teacher(cut, kind, config, ScriptedEngine(Scripted(attempt), late))
    assert late.calls == 2 and len(late.prompts) == 8  # blocks of 6, 6 | 6, 2
    for suffix in ("jsonl", "json", "settings.json"):
        assert (cut.folder / f"{kind}.{suffix}").read_bytes() == (whole.folder / f"{kind}.{suffix}").read_bytes()
    samples.write_bytes(samples.read_bytes().replace(b"p1", b"p2", 1))
    with pytest.raises(UserError, match=rf"{kind}\.jsonl: damaged"):
        evaluate_teacher(cut, kind, config, ScriptedEngine(Scripted(attempt), Scripted(answer)))


def test_problems_without_the_context_are_left_out_and_counted(tmp_path):
    plan, _ = make_plan(tmp_path, "dag_frontier", without_dag=2)
    assert ([problem.id for problem in plan.problems], plan.num_left_out) == (["p3", "p4", "p5"], 2)
    with pytest.raises(UserError, match="none of 5 problems has what context dag_frontier shows"):
        make_plan(tmp_path, "dag_frontier", without_dag=5)
    config = make_config(tmp_path / "run")
    with pytest.raises(UserError, match=r"no aopsd\.evaluation\.data_path"):
        plan_teacher(tmp_path / "run", config, None, None)


@pytest.mark.parametrize("kind", ["solution", "dag_frontier"])
def test_a_teacher_without_room_for_its_answer_is_refused(tmp_path, kind):
    """A cut answer would pass for a context that does not help. The bare question alone has room."""
    plan, config = make_plan(tmp_path, kind)
    tight = replace(config, policy=config.policy | {"max_total_sequence_length": 3150})
    engine = ScriptedEngine(Scripted(attempt), Scripted(answer))
    evaluate_teacher(plan, "none", tight, engine)
    with pytest.raises(UserError, match=r"problem 'p1': prompt \d+ \+ answer 3000 tokens exceed .*=3150\. Lower"):
        evaluate_teacher(plan, kind, tight, engine)


# Utility


def test_utility_is_paired_by_problem():
    """2 samples: a 0 -> 2, b 1 -> 1; changes of pass@1 are 1 and 0, each resampled by problem."""
    alone = {"num_samples": 2, "correct_per_problem": {"a": 0, "b": 1}}
    informed = {"num_samples": 2, "correct_per_problem": {"b": 1, "a": 2}}
    assert utility(alone, informed).splitlines()[2:] == [
        "| pass@1 | 25.00 % (0.00 to 50.00) | 75.00 % (50.00 to 100.00) | 0.500 (0.000 to 1.000) |",
        "| pass@2 | 50.00 % (0.00 to 100.00) | 100.00 % (34.24 to 100.00) | 0.500 (0.000 to 1.000) |",
    ]


# Commands


def test_the_command(tmp_path, monkeypatch):
    data = write_problems(tmp_path / "held.jsonl", 6, without_dag=1)
    run = write_config(tmp_path / "run", context="dag_frontier", curriculum="shuffle", weighting="uniform")
    content = yaml.safe_load((run / "config.yaml").read_text())
    content["aopsd"]["evaluation"] = {"data_path": str(data), "num_samples": 3, "max_new_tokens": 2000}
    (run / "config.yaml").write_text(yaml.safe_dump(content))
    engine = ScriptedEngine(Scripted(attempt), Scripted(answer))
    monkeypatch.setattr(engines, "pick", lambda config: SimpleNamespace(build=lambda config: engine))
    words = ["teacher", str(run), "--max-new-tokens", "1000"]
    said = CliRunner().invoke(diagnose_app, words, catch_exceptions=False).output
    assert "| dag_frontier | 15 of 15 | 5 |" in said and "1 problems lack" in said and "; seed 0 (" in said
    assert re.search(r"\| pass@3 \| .* \| 100\.00 %", said)
    (place,) = (run / "diagnostics/teacher").glob("held_*_x3")
    assert json.loads((place / "dag_frontier.settings.json").read_text())["max_new_tokens"] == 1000
    assert json.loads((place / "dag_frontier.json").read_text())["correct_per_problem"] == {
        f"p{i}": 3 for i in range(2, 7)
    }
