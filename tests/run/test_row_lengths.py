"""Prompts that leave no room are refused before anything is sampled; what may not fit is said.

A character is a token, and each prompt ends with a newline.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from nemo_aopsd.config.schema import (
    AOPSDConfig,
    ContextConfig,
    CurriculumConfig,
    JudgeConfig,
    ObjectiveConfig,
    ProbeConfig,
)
from nemo_aopsd.errors import UserError
from nemo_aopsd.run.row_lengths import check_lengths
from tests import REPO
from tests.fakes import CharTokenizer, make_config, make_problem

KEY = "policy.max_total_sequence_length"
PROMPTS = {
    "student": "{problem}",
    "judge": "{problem}{checkpoints}{attempt}",
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
    config = make_config(Path("run"), aopsd, max_total_sequence_length=budget, generation=generation)
    return check_lengths(config, problems, held_out, CharTokenizer())


def test_a_question_without_room_for_a_token_is_refused(prompts):
    problems = [problem(0, 5), problem(1, 29), problem(2, 31)]
    none = {"context": ContextConfig(kind="none")}
    assert check(prompts, problems, 33, **none) == []
    with pytest.raises(UserError) as error:
        check(prompts, problems, 30, **none)
    first, line, _ = str(error.value).split("\n")  # the third is of the teacher
    assert first == "data and lengths do not fit:"
    assert line == (
        f"- {KEY} is 30; expected at least 33: the student's prompt leaves no room for one token of a response in 2 "
        "of 3 problems (longest: data.jsonl:2, problem 'p2', 33 tokens). "
        f"Set {KEY}=33 at least, or drop these problems."
    )


def test_held_out_questions_count_too(prompts):
    with pytest.raises(UserError, match=r"in 1 of 2 problems \(longest: data\.jsonl:7"):
        check(prompts, [problem(0, 5)], 20, [problem(6, 5), problem(7, 30)])


def test_without_a_teacher_only_the_question_must_fit(prompts):
    sft = ObjectiveConfig(name="sft")
    assert check(prompts, [problem(0, 18, solution=99)], 20, objective=sft) == []


@pytest.mark.parametrize(("weighting", "probe"), [("uniform", 0), ("continuation", 8)])
def test_a_teacher_s_prompt_without_room_for_a_token_is_refused(prompts, weighting, probe):
    problems = [problem(0, 5, solution=10), problem(1, 5, solution=20)]  # the second: 26 tokens
    kind = {"weighting": weighting, "probes": ProbeConfig(length=8)}
    assert len(check(prompts, problems, 27 + probe, **kind)) == 1  # a warning
    with pytest.raises(UserError) as error:
        check(prompts, problems, 26 + probe, **kind)
    (line,) = str(error.value).split("\n")[1:]
    assert f"{KEY} is {26 + probe}; expected at least {27 + probe}: the teacher's prompt leaves no room" in line
    assert f"in 1 of 2 problems (longest: data.jsonl:1, problem 'p1', {27 + probe} tokens)" in line
    assert f"Set {KEY}={26 + 12 + probe} for 12 tokens of response" in line
    assert "or aopsd.context.on_overlong=drop" in line


def test_what_is_dropped_is_a_warning_unless_it_is_everything(prompts):
    drop = {"context": ContextConfig(kind="solution", on_overlong="drop")}
    problems = [problem(0, 5, solution=10), problem(1, 5, solution=20)]
    (warning,) = check(prompts, problems, 26, **drop)
    assert warning == (
        f"{KEY} is 26; expected at least 38: the teacher's row may not fit with 12 tokens of response, that of 1 "
        "always in 2 of 2 problems (longest: data.jsonl:1, problem 'p1', 38 tokens); such a rollout would be left out "
        f"of the update. Set {KEY}=38, or lower policy.generation.max_new_tokens."
    )
    with pytest.raises(UserError, match=r"no room .* in 2 of 2 problems .*=38 .*, or drop these problems"):
        check(prompts, problems, 16, **drop)


def test_a_response_ends_with_its_own_row(prompts):
    """So without a context the teacher's row is the student's, however many tokens are allowed."""
    none = ContextConfig(kind="none")
    assert check(prompts, [problem(0, 5)], 20, longest=19, context=none) == []
    (warning,) = check(prompts, [problem(0, 5)], 20, longest=19, context=none, weighting="continuation")
    assert "19 tokens of response and 8 of a probe" in warning and "problem 'p0', 28 tokens" in warning
    assert warning.endswith("or set aopsd.context.on_overlong=drop.")


def test_a_frontier_counts_as_the_whole_graph(prompts):
    """Four statements and their marks; with nothing reached, the last ones would not be shown."""
    frontier = {"context": ContextConfig(kind="dag_frontier"), "judge": JudgeConfig(max_new_tokens=1)}
    problems = [replace(make_problem(0), where="data.jsonl:1")]
    assert check(prompts, problems, 400, **frontier) == []
    whole = {**frontier, "context": ContextConfig(kind="dag_full")}
    with pytest.raises(UserError, match=r"teacher's prompt leaves no room") as of_frontier:
        check(prompts, problems, 60, **frontier)
    with pytest.raises(UserError, match=r"teacher's prompt leaves no room") as of_whole:
        check(prompts, problems, 60, **whole)
    marks = 4 * len(" (reached)")

    def tokens(error):
        line = next(line for line in str(error.value).split("\n") if "teacher" in line)
        return int(line.rpartition(" tokens)")[0].rpartition(" ")[2])

    assert 0 < tokens(of_frontier) - tokens(of_whole) <= marks


def test_another_problem_s_solution_counts(prompts):
    problems = [problem(0, 5, solution=10), problem(1, 6, solution=20)]
    other = {"context": ContextConfig(kind="other_problem")}
    (warning,) = check(prompts, problems, 40, **other)  # 5 + 6 + 20 + 1 = 32, and 12
    assert "problem 'p0', 44 tokens" in warning


def test_a_judge_without_room_for_an_attempt_is_refused(prompts):
    curriculum = {"curriculum": CurriculumConfig(name="competence"), "context": ContextConfig(kind="none")}
    problems = [replace(make_problem(0), where="data.jsonl:1")]
    with pytest.raises(UserError, match=r"the judge's prompt without any attempt, with aopsd.judge.max_new_tokens=180"):
        check(prompts, problems, 200, judge=JudgeConfig(max_new_tokens=180), **curriculum)
    assert check(prompts, problems, 200, judge=JudgeConfig(max_new_tokens=20), **curriculum) == []
    shuffled = {**curriculum, "curriculum": CurriculumConfig(name="shuffle")}  # nobody asks it
    assert check(prompts, problems, 200, judge=JudgeConfig(max_new_tokens=180), **shuffled) == []


EXAMPLE = REPO / "examples/configs/aopsd_tiny_cpu.yaml"


def test_a_run_is_refused_before_its_folder_has_anything(command_line, tmp_path):
    line = f"train {EXAMPLE} logger.log_dir={tmp_path}/run"
    code, _, err = command_line(f"{line} {KEY}=128")
    assert code == 2
    assert err.startswith(f"error: data and lengths do not fit:\n- {KEY} is 128; expected at least 148: the judge's")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_a_warning_does_not_stop_a_run(command_line, tmp_path):
    small = f"logger.log_dir={tmp_path}/run aopsd.max_num_steps=0 aopsd.evaluation.data_path=null"
    shuffled = "aopsd.curriculum.name=shuffle"
    code, out, err = command_line(f"train {EXAMPLE} {small} {shuffled} {KEY}=200")
    assert code == 0 and "done. Next" in out
    assert err.startswith(f"warning: {KEY} is 200; expected at least 207: the teacher's row may not fit")
    assert "in 94 of 384 problems" in err and "such a rollout would end the run" in err
