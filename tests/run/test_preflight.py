"""What the data must have depends on the objective; all of it is known before a model is loaded."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.schema import (
    AOPSDConfig,
    ContextConfig,
    CurriculumConfig,
    JudgeConfig,
    ObjectiveConfig,
    ProbeConfig,
)
from nemo_aopsd.errors import UserError
from nemo_aopsd.run.preflight import Findings, check_inputs, look, summarize, trained_on
from tests import raw_graph
from tests.fakes import make_config, make_problem

GRAPH = {"dag": raw_graph({"a": "one"})}


def config_for(tmp_path, objective: ObjectiveConfig, fields: dict, **changes):
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"id": "p1", "problem": "1 + 1?", "answer": "2", **fields}) + "\n")
    changes.setdefault("curriculum", CurriculumConfig(name="shuffle"))
    aopsd = AOPSDConfig(objective=objective, weighting="uniform", **changes)
    config = make_config(tmp_path, aopsd, model_name="m")
    config.data["train"]["data_path"] = str(path)
    return config


@pytest.mark.parametrize("objective", [ObjectiveConfig(name="sft"), ObjectiveConfig(name="gkd", on_policy_rate=0.9)])
def test_objectives_that_train_on_solutions_refuse_a_problem_without(tmp_path, objective):
    config = config_for(tmp_path, objective, GRAPH)
    with pytest.raises(UserError, match=rf"problems\.jsonl:1: .*'p1'.*`solution`.*objective\.name={objective.name}"):
        check_inputs(config)


@pytest.mark.parametrize(("name", "fields"), [("sft", {"solution": "Count."}), ("grpo", {})])
def test_without_a_teacher_the_data_need_not_have_what_a_context_shows(tmp_path, name, fields):
    """The default context would show a graph."""
    config = config_for(tmp_path, ObjectiveConfig(name=name), fields, num_generations_per_prompt=2)
    problems, _ = check_inputs(config)
    assert "context none" in summarize(config, Findings(inputs=(problems, None)))
    with pytest.raises(UserError, match="no `dag`"):
        check_inputs(config_for(tmp_path, ObjectiveConfig(name="fkl"), fields))


def test_a_judge_of_ones_own_needs_no_wording_of_ours(tmp_path):
    judge = JudgeConfig(kind=f"{Path(__file__).parents[2] / 'examples/my_parts.py'}:NumberJudge")
    problems, _ = check_inputs(config_for(tmp_path, ObjectiveConfig(name="fkl"), GRAPH, judge=judge))
    assert [problem.id for problem in problems] == ["p1"]


@pytest.mark.parametrize("kind", ["dag_full", "dag_frontier"])
def test_a_graph_that_gives_the_answer_away_by_value_is_refused_where_it_is_shown(tmp_path, kind):
    fields = {"answer": "1/2", "dag": raw_graph({"a": "The share equals 0.5"}), "solution": "Halve it."}
    shown = config_for(tmp_path, ObjectiveConfig(name="fkl"), fields, context=ContextConfig(kind=kind))
    with pytest.raises(
        UserError, match=r"problems\.jsonl:1: .*'p1'.*states_answer.*\n.*aopsd dag check .*problems\.jsonl$"
    ):
        check_inputs(shown)
    check_inputs(config_for(tmp_path, ObjectiveConfig(name="fkl"), fields, context=ContextConfig(kind="solution")))


def test_a_solution_that_boxes_another_value_than_the_answer_is_a_warning(tmp_path):
    for fields, number in (
        ({"solution": r"So \boxed{3}.", **GRAPH}, 1),
        ({"solution": r"\boxed{3}, no: \boxed{\frac{4}{2}}"}, 0),
        ({"solution": "Count."}, 0),
    ):
        config = config_for(tmp_path, ObjectiveConfig(name="sft"), fields)
        warned = look(config, [], lambda: None, lambda: None).warned["problems"]
        assert len(warned) == number
        if warned:
            assert "problems.jsonl:1: in 1 of 1 problem " in warned[0] and "such as 'p1' ('2')" in warned[0]
            assert warned[0].endswith(f"List all: aopsd dag check {tmp_path / 'problems.jsonl'}")


def test_what_two_checks_find_is_told_once(tmp_path):
    config = config_for(tmp_path, ObjectiveConfig(name="grpo"), {})
    (tmp_path / "run").mkdir()
    (tmp_path / "run/notes.txt").touch()
    config.logger["log_dir"] = str(tmp_path / "run")
    found = look(config, [], lambda: None)
    assert [line for line in found.warnings if "is not empty" in line] == found.warned["run folder"] != []
    with pytest.raises(UserError) as error:
        Findings(refused={"settings": "m: no weights.\nm: no tokenizer.", "prompts": "m: no tokenizer."}).passed()
    assert str(error.value) == "m: no weights.\nm: no tokenizer."


def test_a_file_beside_the_config_is_named_where_there_is_none_from_here(tmp_path, monkeypatch):
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "rows.jsonl").touch()
    (folder / "parts.py").touch()
    text = "defaults: demo\ndata: {train: {data_path: rows.jsonl}}\naopsd: {weighting: parts.py:Mine}\n"
    (folder / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    mine = Path("configs/mine.yaml")
    told = r"configs/mine\.yaml:{}=.*: no such file \(looked from /.*\)\..* There is one beside the config, .* set {}$"
    with pytest.raises(UserError, match=told.format("3: aopsd.weighting", "aopsd.weighting=configs/parts.py:Mine")):
        load_config(mine)
    with pytest.raises(
        UserError, match=told.format("2: data.train.data_path", "data.train.data_path=configs/rows.jsonl")
    ):
        check_inputs(load_config(mine, ["aopsd.weighting=uniform"]))


def summary(config, **options):
    return summarize(config, Findings(inputs=check_inputs(config)), **options)


def test_the_summary_tells_of_the_attempts_before_the_first_step(tmp_path):
    for name, told in (
        ("competence", "before     5 attempts (5 at each of 1 problem), each judged, before step 1"),
        ("shuffle", None),
    ):
        curriculum = CurriculumConfig(name=name, num_initial_attempts=5)
        config = config_for(tmp_path, ObjectiveConfig(name="pg"), GRAPH, curriculum=curriculum)
        lines = [line for line in summary(config).splitlines() if "before" in line]
        assert [told] == [line[: len(told)] for line in lines] if told else not lines
        resumed = summary(config, steps_done=7)
        assert "; 7 steps done\n" in resumed and "before step 1" not in resumed


def test_a_disk_that_is_full_is_told_with_file_and_remedy(tmp_path):
    def check_place():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/mine")

    config = config_for(tmp_path, ObjectiveConfig(), {}, context=ContextConfig("none"))
    found = look(config, [], lambda: None, check_place)
    assert found.refused == {
        "run folder": f"runs/mine: {os.strerror(errno.ENOSPC)}. Free some space, then start the same command."
    }


def test_the_summary_names_the_method_before_the_ablation(tmp_path):
    config = config_for(tmp_path, ObjectiveConfig(name="pg"), GRAPH, context=ContextConfig("dag_frontier"))
    config = replace(config, aopsd=AOPSDConfig(probes=ProbeConfig(threshold=1.0)))
    told = summary(config)
    assert "aopsd + probes.threshold=1 (ablation delta_1): pg, context dag_frontier" in told
    assert "\nseed       0: " in told


@pytest.mark.parametrize(
    ("judge", "context", "is_told"),
    [
        (JudgeConfig("log_odds"), "dag_frontier", True),
        (JudgeConfig("log_odds", threshold=1.25), "dag_frontier", False),
        (JudgeConfig("list"), "dag_frontier", False),
        (JudgeConfig("log_odds"), "dag_full", False),  # nobody asks it
    ],
)
def test_the_summary_tells_of_a_threshold_that_nobody_fitted(tmp_path, judge, context, is_told):
    config = config_for(tmp_path, ObjectiveConfig(name="pg"), GRAPH, context=ContextConfig(context), judge=judge)
    told = summary(config)
    assert ("aopsd judge eval --calibrate" in told) is is_told


def test_the_summary_names_every_limit(tmp_path):
    budgets = {"max_num_steps": 5, "max_response_tokens": 120000, "max_train_seconds": 90.0}
    config = config_for(tmp_path, ObjectiveConfig(name="grpo"), {}, **budgets)
    told = summary(config)
    assert "at most 3 epochs, 5 steps, 120,000 response tokens, 90.0 seconds" in told
    config = config_for(tmp_path, ObjectiveConfig(), GRAPH, max_num_steps=0)
    told = summary(config)
    assert "no steps: evaluates only" in told and "attempts" not in told and "before step 1" not in told


def test_evaluation_problems_that_are_trained_on_are_counted_and_not_called_held_out(tmp_path):
    """The copies differ in case, spacing and LaTeX layout."""
    training = [replace(make_problem(0), problem=text) for text in ("Find \\(x\\) if $x = 3$.", "What is 2?")]
    held_out = [replace(make_problem(1), problem=text) for text in ("find  $x$ if x=3", "What is 5?")]
    [line] = trained_on(training, held_out, "dev.jsonl")
    assert line.startswith("dev.jsonl: 1 of 2 evaluation problems are also trained on, such as 'p001'")
    assert trained_on(training, held_out[1:], "dev.jsonl") == trained_on(training, None, None) == []
    config = config_for(tmp_path, ObjectiveConfig(name="grpo"), {})
    assert "2 problems, not held out: 1 is also trained on, from" in summarize(
        config, Findings(inputs=(training, held_out))
    )
    assert "1 held-out problem, from" in summarize(config, Findings(inputs=(training, held_out[1:])))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"solutoin": "Count."}, "`solutoin` is not read. Did you mean `solution`?"),
        ({"awnser": "3"}, "`awnser` is not read. Did you mean `answer`?"),
        ({"full_solution": "Count."}, "`full_solution` is not read. Did you mean `solution`?"),
        ({"topic": "sums", "unique_id": 1, "idx": 1, "final_answer": "2", "question": "?"}, None),  # kept columns
        ({"solution": "Count.", "solutions": ["Count."], "level": 3, "source": "mine", "answer_type": "int"}, None),
    ],
)
def test_a_field_that_is_nearly_one_that_is_read_is_told_once_a_file(tmp_path, fields, told):
    config = config_for(tmp_path, ObjectiveConfig(name="grpo"), fields)
    path = Path(config.data["train"]["data_path"])
    rows = [json.loads(path.read_text()) | {"id": f"p{number}"} for number in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    warned = look(config, [], lambda: None, measures=False).warned["problems"]
    assert warned == ([f"{path}:1: 3 rows of the file: the field {told} Rename it, if so"] if told else [])
