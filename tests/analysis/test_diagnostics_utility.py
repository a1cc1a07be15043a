"""Teacher answers on file, and Figure 1a from them: a scripted engine whose answers depend on what it reads."""

import json
import random
import re
from dataclasses import replace

import pytest
import yaml
from typer.testing import CliRunner

from nemo_aopsd import engines
from nemo_aopsd.analysis.diagnostics import teacher
from nemo_aopsd.analysis.diagnostics.teacher import evaluate_teacher, plan_teacher
from nemo_aopsd.analysis.diagnostics.utility import diagnose_utility
from nemo_aopsd.cli.diagnose import app as diagnose_app
from nemo_aopsd.config.schema import AOPSDConfig, ContextConfig, EvaluationConfig
from nemo_aopsd.errors import UserError
from nemo_aopsd.types import Generation
from tests.diagnosed import write_config, write_lines
from tests.fakes import END, CharTokenizer, make_config

TOKENIZER = CharTokenizer()


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
    write_lines(path, rows)
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
    lines = [json.loads(line) for line in (plan.folder / f"{kind}.jsonl").read_text().splitlines()]
    assert [(line["problem_id"], line["sample"]) for line in lines] == [
        (f"p{i}", s) for i in range(1, 6) for s in range(4)
    ]
    again = Scripted(answer)
    assert evaluate_teacher(plan, kind, config, ScriptedEngine(again, again)) == informed and again.calls == 0


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
    with (cut.folder / f"{kind}.jsonl").open("a") as file:
        file.write('{"problem_id": "p4", "sam')
    assert not (cut.folder / f"{kind}.json").exists()
    late = Scripted(answer)
    evaluate_teacher(cut, kind, config, ScriptedEngine(Scripted(attempt), late))
    assert late.calls == 2 and len(late.prompts) == 8  # blocks of 6, 6 | 6, 2
    for suffix in ("jsonl", "json", "settings.json"):
        assert (cut.folder / f"{kind}.{suffix}").read_bytes() == (whole.folder / f"{kind}.{suffix}").read_bytes()


def test_other_settings_are_refused(tmp_path):
    plan, config = make_plan(tmp_path, "solution")
    engine = ScriptedEngine(Scripted(attempt), Scripted(answer))
    evaluate_teacher(plan, "solution", config, engine)
    hotter = replace(config, aopsd=replace(config.aopsd, evaluation=replace(config.aopsd.evaluation, temperature=2.0)))
    with pytest.raises(UserError, match=r"temperature 0\.6 -> 2\.0"):
        evaluate_teacher(plan, "solution", hotter, engine)


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


def summary(path, counts, num_samples):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"num_samples": num_samples, "correct_per_problem": counts}))


def write_subject(folder, context="solution"):
    """Teacher, 2 samples: a 0 -> 2, b 1 -> 1. Student, 4 samples: c 2 -> 1, d 4 -> 4."""
    run = write_config(folder, context=context, curriculum="shuffle", weighting="uniform")
    place = run / "diagnostics/teacher/held_x2"
    summary(place / "none.json", {"a": 0, "b": 1}, 2)
    summary(place / f"{context}.json", {"b": 1, "a": 2}, 2)
    summary(run / "eval/epoch_000.json", {"c": 2, "d": 4}, 4)
    summary(run / "eval/epoch_001.json", {"c": 0, "d": 0}, 4)
    summary(run / "eval/epoch_002.json", {"c": 1, "d": 4}, 4)
    return run


def test_utility_against_transfer(tmp_path):
    run = write_subject(tmp_path / "one")
    (row,) = diagnose_utility([run], k=1).tables[0].rows
    values = {key: cell.value for key, cell in row.items() if hasattr(cell, "value")}
    assert values == pytest.approx(
        {
            "teacher alone": 0.25,
            "teacher with context": 0.75,
            "change, teacher": 0.5,
            "student before": 0.75,
            "student after": 0.625,
            "change, student": -0.125,
        }
    )
    # paired: per-problem changes 1 and 0 (teacher), -1/4 and 0 (student), each resampled by problem
    assert (row["change, teacher"].low, row["change, teacher"].high) == (0.0, 1.0)
    assert (row["change, student"].low, row["change, student"].high) == (-0.25, 0.0)
    assert (row["context"], row["student's evaluations"]) == ("solution", "epoch_000 to epoch_002")


def test_k_defaults_to_what_all_evaluations_allow(tmp_path):
    """pass@2 of 2 of 4 samples is 5/6, of 1 of 4 it is 1/2."""
    runs = [write_subject(tmp_path / "one"), write_subject(tmp_path / "two", context="plan")]
    result = diagnose_utility(runs)
    assert result.settings["k"] == 2 and [row["context"] for row in result.tables[0].rows] == ["solution", "plan"]
    row = result.tables[0].rows[0]
    assert row["teacher alone"].value == 0.5 and row["teacher with context"].value == 1.0
    assert row["student before"].value == pytest.approx((5 / 6 + 1) / 2)
    assert row["student after"].value == pytest.approx((1 / 2 + 1) / 2)
    assert result.samples["runs"] == 2 and result.samples["teacher's problems, two"] == 2
    with pytest.raises(UserError, match=r"--k 3: .* has 2 samples a problem"):
        diagnose_utility(runs, k=3)


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [write_subject(tmp_path / place / "demo") for place in ("x", "y")]
    assert [row["run"] for row in diagnose_utility(runs).tables[0].rows] == ["x/demo", "y/demo"]
    with pytest.raises(UserError, match="two runs of one name"):
        diagnose_utility([runs[0], runs[0]])
    with pytest.raises(UserError, match="no run given"):
        diagnose_utility([])


def test_what_utility_lacks_is_named(tmp_path):
    run = write_subject(tmp_path / "one")
    (run / "eval/epoch_000.json").rename(run / "kept.json")
    with pytest.raises(UserError, match=r"needs the evaluation before training .* found epoch_001, epoch_002"):
        diagnose_utility([run])
    (run / "kept.json").rename(run / "eval/epoch_000.json")
    summary(run / "eval/epoch_002.json", {"c": 1, "x": 4}, 4)
    with pytest.raises(UserError, match="share no set of problems: 2 in one only"):
        diagnose_utility([run])
    summary(run / "eval/epoch_002.json", {"c": 1, "d": 5}, 4)
    with pytest.raises(UserError, match=r"`correct_per_problem`.*`num_samples` 4"):
        diagnose_utility([run])
    (run / "eval/epoch_002.json").write_text('{"num_samples": 4}')
    with pytest.raises(UserError, match=r"epoch_002\.json: `correct_per_problem`"):
        diagnose_utility([run])
    (run / "eval/epoch_002.json").write_text("{")
    with pytest.raises(UserError, match=r"epoch_002\.json: .*JSON"):
        diagnose_utility([run])
    place = run / "diagnostics/teacher"
    summary(place / "other_x2/none.json", {"a": 0}, 2)  # not finished, so no second choice
    with pytest.raises(UserError, match=r"epoch_002\.json: .*JSON"):
        diagnose_utility([run])
    summary(place / "other_x2/solution.json", {"a": 0}, 2)
    with pytest.raises(UserError, match="several teacher evaluations: held_x2, other_x2"):
        diagnose_utility([run])
    with pytest.raises(UserError, match=r"no finished teacher evaluation gone .* Run `aopsd diagnose teacher"):
        diagnose_utility([run], teacher="gone")
    with pytest.raises(UserError, match=r"aopsd\.context\.kind=none"):
        diagnose_utility([write_config(tmp_path / "none", context="none", curriculum="shuffle")])


# Commands


def test_teacher_and_utility_as_commands(tmp_path, monkeypatch):
    data = write_problems(tmp_path / "held.jsonl", 6, without_dag=1)
    run = write_subject(tmp_path / "run", context="dag_frontier")
    content = yaml.safe_load((run / "config.yaml").read_text())
    content["aopsd"]["evaluation"] = {"data_path": str(data), "num_samples": 3, "max_new_tokens": 2000}
    (run / "config.yaml").write_text(yaml.safe_dump(content))
    engine = ScriptedEngine(Scripted(attempt), Scripted(answer))

    class Module:
        build = staticmethod(lambda config: engine)

    monkeypatch.setattr(engines, "pick", lambda config: Module)
    runner = CliRunner()
    said = runner.invoke(diagnose_app, ["teacher", str(run), "--max-new-tokens", "1000"], catch_exceptions=False).output
    assert "context dag_frontier: 15 of 15 right, 5 problems" in said and "1 problems lack" in said
    name = next(path.name for path in (run / "diagnostics/teacher").glob("held_*_x3"))
    settings = json.loads((run / "diagnostics/teacher" / name / "dag_frontier.settings.json").read_text())
    assert settings["max_new_tokens"] == 1000
    out = tmp_path / "out"
    command = ["utility", str(run), "--teacher", name, "--k", "1", "--out", str(out)]
    said = runner.invoke(diagnose_app, command, catch_exceptions=False).output
    assert "| run | dag_frontier | uniform |" in said
    row = json.loads((out / "utility.json").read_text())["tables"]["pass@1"][0]
    assert row["teacher with context"]["value"] == 1.0 and row["change, student"]["value"] == -0.125
    assert (out / "utility.svg").is_file() and (out / "utility.md").is_file()
