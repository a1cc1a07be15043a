"""Prompts that leave no room are refused before anything is sampled; what may not fit is said.

A character is a token, and each prompt ends with a newline.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from nemo_aopsd.config import schema
from nemo_aopsd.config.schema import AOPSDConfig, ContextConfig, CurriculumConfig, JudgeConfig, ProbeConfig
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.judge import CUT
from nemo_aopsd.models.config_json import ModelConfig
from nemo_aopsd.run import row_lengths
from nemo_aopsd.run.row_lengths import check_lengths
from tests import REPO
from tests.fakes import CharTokenizer, make_config, make_problem

KEY = "policy.max_total_sequence_length"
PROMPTS = {
    "student": "{problem}",
    "judge": "{problem}{checkpoints}{attempt}",
    "judge_checkpoint": "{problem}{attempt}{checkpoint}",
    "teacher_dag": "{problem}{context}",
    "teacher_dag_marked": "{problem}{context}",
    "teacher_solution": "{problem}{context}",
    "teacher_other_problem": "{problem}{donor_problem}{context}",
}


@pytest.fixture
def prompts(tmp_path):
    """A folder of prompts that add nothing to what they show."""
    folder = tmp_path / "prompts"
    folder.mkdir()
    for name, text in PROMPTS.items():
        (folder / f"{name}.txt").write_text(text)
    return str(folder)


def problem(index, characters, solution=0):
    texts = {"problem": "?" * characters, "solution": "s" * solution}
    return replace(make_problem(index), id=f"p{index}", where=f"data.jsonl:{index}", **texts)


def check(prompts, problems, budget, held_out=None, *, longest=12, **changes):
    """With the context `solution` and no judge, unless told otherwise: rows are easy to count."""
    plain = {
        "context": ContextConfig(kind="solution"),
        "curriculum": CurriculumConfig(name="shuffle"),
        "weighting": "uniform",
        "prompts": prompts,
    }
    generation = {"max_new_tokens": longest, "temperature": 1.0, "top_p": 1.0, "top_k": None}
    aopsd = AOPSDConfig(**plain | changes)
    config = make_config(Path("run"), aopsd, model_name="m", max_total_sequence_length=budget, generation=generation)
    return check_lengths(config, problems, held_out, CharTokenizer())


def refused(prompts, problems, budget, *more, **changes):
    """What is said of each fault, in lines; the last has the remedy of all."""
    with pytest.raises(UserError) as error:
        check(prompts, problems, budget, *more, **changes)
    head, *lines, last, remedy = str(error.value).split("\n")
    assert head == "data and lengths do not fit:"
    return [*lines, f"{last} {remedy}"]


def test_a_question_without_room_for_a_token_is_refused(prompts):
    problems, none = [problem(0, 5), problem(1, 29), problem(2, 31)], {"context": ContextConfig(kind="none")}
    assert check(prompts, problems, 33, **none) == []
    line, teacher = refused(prompts, problems, 30, **none)
    assert line == (
        f"- {KEY} is 30; expected at least 33: the student's prompt leaves no room for one token of a response in 2 "
        "of 3 problems (longest: data.jsonl:2, problem 'p2', 33 tokens)."
    )
    drop = "aopsd.context.on_overlong=drop to leave such rollouts out"
    assert "expected at least 44: " in teacher and " Set " not in line  # that mends both
    assert teacher.endswith(f" tokens). Set {KEY}=44, or drop these problems and set {drop}.")
    [line] = refused(prompts, [problem(0, 5)], 20, [problem(6, 5), problem(7, 30)])
    assert "in 1 of 2 problems (longest: data.jsonl:7" in line  # held out
    sft = schema.ObjectiveConfig(name="sft")  # has no teacher whose row must fit
    assert check(prompts, [problem(0, 18, solution=99)], 20, objective=sft) == []


@pytest.mark.parametrize(("weighting", "probe"), [("uniform", 0), ("continuation", 8)])
def test_a_teacher_s_prompt_without_room_for_a_token_is_refused(prompts, weighting, probe):
    problems = [problem(0, 5, solution=10), problem(1, 5, solution=20)]  # the second: 26 tokens
    kind = {"weighting": weighting, "probes": ProbeConfig(length=8)}
    assert len(check(prompts, problems, 27 + probe, **kind)) == 1  # a warning
    [line] = refused(prompts, problems, 26 + probe, **kind)
    assert f"{KEY} is {26 + probe}; expected at least {38 + probe}: the teacher's prompt leaves no room" in line
    assert f"in 1 of 2 problems (longest: data.jsonl:1, problem 'p1', {27 + probe} tokens)" in line
    assert f"Set {KEY}={38 + probe}, or set aopsd.context.on_overlong=drop" in line


def test_what_is_dropped_is_a_warning_unless_it_is_everything(prompts):
    drop = {"context": ContextConfig(kind="solution", on_overlong="drop")}
    problems = [problem(0, 5, solution=10), problem(1, 5, solution=20)]
    (warning,) = check(prompts, problems, 26, **drop)
    assert f"{KEY} is 26; expected at least 38: with 12 tokens of response the teacher's row" in warning
    assert "In 1 of them" in warning and "in 2 of 2 problems (longest: data.jsonl:1, problem 'p1', 38" in warning
    assert "left out of the update" in warning and warning.endswith(f"Set {KEY}=38, or drop these problems.")
    [line] = refused(prompts, problems, 16, **drop)
    assert "no room" in line and "in 2 of 2 problems" in line


def test_a_response_ends_with_its_own_row(prompts):
    """So without a context the teacher's row is the student's, however many tokens are allowed."""
    none = ContextConfig(kind="none")
    assert check(prompts, [problem(0, 5)], 20, longest=19, context=none) == []
    (warning,) = check(prompts, [problem(0, 5)], 20, longest=19, context=none, weighting="continuation")
    assert "19 tokens of response and 8 of a probe" in warning and "problem 'p0', 28 tokens" in warning


def test_a_frontier_counts_as_the_whole_graph_and_another_problem_s_solution_counts(prompts):
    problems = [replace(make_problem(0), where="data.jsonl:1")]
    judge = JudgeConfig(max_new_tokens=1)
    tokens = {}
    for kind in ("dag_frontier", "dag_full"):
        line = refused(prompts, problems, 60, context=ContextConfig(kind=kind), judge=judge)[-1]
        assert "teacher's prompt leaves no room" in line
        tokens[kind] = int(line.partition(" tokens)")[0].rpartition(" ")[2])
    assert 0 < tokens["dag_frontier"] - tokens["dag_full"] <= 4 * len(" (reached)")  # all four statements, with marks
    problems = [problem(0, 5, solution=10), problem(1, 6, solution=20)]
    (warning,) = check(prompts, problems, 40, context=ContextConfig(kind="other_problem"))
    assert "problem 'p0', 44 tokens" in warning  # 5 + 6 + 20 + 1 = 32, and 12


def test_a_judge_without_room_for_an_attempt_is_refused(prompts):
    asked = {"curriculum": CurriculumConfig(name="competence"), "context": ContextConfig(kind="none")}
    problems, long = [replace(make_problem(0), where="data.jsonl:1")], JudgeConfig(max_new_tokens=180)
    [line] = refused(prompts, problems, 200, judge=long, **asked)
    assert "with 180 tokens of a verdict" in line and line.endswith("or lower aopsd.judge.max_new_tokens to 100.")
    assert check(prompts, problems, 200, judge=JudgeConfig(max_new_tokens=100), **asked) == []
    [line] = refused(prompts, problems, 99, judge=long, **asked)
    assert line.endswith("or lower aopsd.judge.max_new_tokens and drop the longest problems.")
    assert check(prompts, problems, 200, judge=JudgeConfig(max_new_tokens=20), **asked) == []
    assert check(prompts, problems, 200, judge=long, context=ContextConfig(kind="none")) == []  # nobody asks it
    by_one = JudgeConfig(kind="log_odds", max_new_tokens=180)
    need = len(problems[0].problem + CUT + "xa = 0\n") + 1  # its longest question, and yes or no
    assert check(prompts, problems, need, judge=by_one, **asked) == []
    [line] = refused(prompts, problems, need - 1, judge=by_one, **asked)
    assert f"{KEY} is {need - 1}; expected at least {need}: " in line


def test_no_length_is_advised_that_the_model_cannot_take(prompts, monkeypatch):
    sft, problems = schema.ObjectiveConfig(name="sft"), [problem(0, 5), problem(1, 31)]  # without a teacher's row
    for positions, remedy in ((33, f"Set {KEY}=33, or "), (32, "The model has only 32 positions, so ")):
        model = ModelConfig("config.json", positions=positions)
        monkeypatch.setattr(row_lengths, "find_model_config", lambda name, model=model: model)
        [line] = refused(prompts, problems, 30, objective=sft)
        assert line.endswith(f"{remedy}drop these problems.")


def test_all_that_a_small_model_cannot_take_is_told_at_once(command_line, tmp_path):
    """README's config, with the built-in model and problems that it cannot read."""
    (tmp_path / "mine.yaml").write_text(
        "policy:\n  model_name: ${package:builtin/model}\n  max_total_sequence_length: 4096\n"
        "  generation: {max_new_tokens: 2048}\n  optimizer: {kwargs: {lr: 1.0e-6}}\n"
        f"data: {{train: {{data_path: {REPO}/examples/data/problems.jsonl}}}}\nlogger: {{log_dir: {tmp_path}/run}}\n"
    )
    code, _, err = command_line(f"train {tmp_path}/mine.yaml --check")
    assert code == 2 and "at most 512, and lower what is to fit in it: policy.generation.max_new_tokens=2048, " in err
    assert "\n- the model's positions are 512; expected at least" in err and "aopsd.prompts=tiny" in err
    assert "30 of 30 questions are mostly unknown tokens" in err
    _, _, err = command_line(f"train {tmp_path}/mine.yaml --check aopsd.prompts=tiny")
    assert "positions are 512; expected" in err and "Or set aopsd.prompts=tiny" not in err


def test_a_tokenizer_without_yes_and_no_is_refused_where_they_are_read(prompts, monkeypatch):
    asked = {"curriculum": CurriculumConfig(name="competence"), "context": ContextConfig(kind="none")}
    monkeypatch.setattr(CharTokenizer, "encode", lambda self, text: [1] * len(text))
    assert check(prompts, [problem(0, 5)], 300, **asked | {"judge": JudgeConfig(max_new_tokens=9)}) == []
    with pytest.raises(UserError, match=r"aopsd\.judge\.kind=log_odds"):
        check(prompts, [problem(0, 5)], 300, **asked | {"judge": JudgeConfig(kind="log_odds")})


def test_a_run_is_refused_before_its_folder_has_anything_and_a_warning_does_not_stop_it(command_line, tmp_path):
    rows = (REPO / "nemo_aopsd/builtin/data/train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "long.jsonl").write_text("".join(sorted(rows, key=len)[-4:]), encoding="utf-8")
    line = f"train demo logger.log_dir={tmp_path}/run data.train.data_path={tmp_path}/long.jsonl"
    code, out, err = command_line(f"{line} {KEY}=128 --check")  # by the tokenizer, without the model
    assert (code, out) == (2, "") and f"\n- {KEY} is 128; expected at least 148: the judge's" in err
    code, out, err = command_line(f"{line} {KEY}=300 --check")
    assert (code, err) == (0, "") and "\nok: settings, problems, lengths of prompts. Not checked: the weights" in out
    code, _, err = command_line(f"{line} {KEY}=128")
    assert code == 2 and f"\n- {KEY} is 128; expected at least 148: the judge's" in err
    assert not (tmp_path / "run").exists()
    small = "aopsd.max_num_steps=0 aopsd.evaluation.data_path=null aopsd.curriculum.name=shuffle"
    code, _, err = command_line(f"{line} {small} {KEY}=200")
    assert code == 0 and f"warning: {KEY} is 200; expected at least 207" in err and "of 4 problems" in err
