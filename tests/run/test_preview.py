import io
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from nemo_aopsd.cli.app import app
from nemo_aopsd.config.schema import AOPSDConfig, ContextConfig, CurriculumConfig, ProbeConfig
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.step import collect
from nemo_aopsd.run.preview import gap_text, show
from nemo_aopsd.types import Generation
from tests import REPO
from tests.fakes import END, CharTokenizer, FakeEngine, make_config, make_problem, random_table

PROBLEMS = [make_problem(index) for index in range(4)]
GENERATION = {"max_new_tokens": 60, "temperature": 1.0, "top_p": 1.0, "top_k": None}


def engine():
    return FakeEngine(random_table(0, end_boost=0.5), random_table(1, end_boost=0.5))


def preview(aopsd, judged_engine=None, *, terminal=False, width=120, **policy):
    target = io.StringIO()
    console = Console(file=target, width=width, force_terminal=terminal, color_system="truecolor" if terminal else None)
    config = make_config(Path("unused"), aopsd, generation=GENERATION, **policy)
    show(PROBLEMS[1], PROBLEMS, judged_engine or engine(), config, console)
    return target.getvalue(), config


@pytest.mark.parametrize("betas", ["fixed", "auto"])
def test_shows_the_numbers_of_the_step_itself(betas):
    aopsd = AOPSDConfig(probes=ProbeConfig(threshold=1.0, betas=betas), num_generations_per_prompt=4)
    text, config = preview(aopsd, width=200)
    one = replace(config, aopsd=replace(aopsd, num_generations_per_prompt=1))
    objective = build_objective(one.aopsd.objective)
    [rollout] = collect([PROBLEMS[1]], engine(), objective, one, donors={}, seed=0).scored
    assert len(rollout.probes) >= 3
    tokenizer = CharTokenizer()
    flat = " ".join(text.split())
    for prompt in (rollout.draft.student_prompt, rollout.draft.teacher_prompt):
        assert " ".join(tokenizer.decode(prompt).split()) in flat
    table = re.findall(
        r"^ *(\d+) +(\d+) .* ([+-]\d+\.\d\d) .* (\d+\.\d\d|none) +(\S+) +(\d\.\d\d) *$", text, re.MULTILINE
    )
    expected = [
        (
            str(row),
            str(probe.position),
            f"{probe.gap:+.2f}",
            "none" if probe.nll is None else f"{probe.nll:.2f}",
            f"{probe.weight:.2f}",
        )
        for row, probe in enumerate(rollout.probes, start=1)
    ]
    assert [(*row[:4], row[5]) for row in table] == expected
    for *_, nll, beta, weight in table:  # the formula, from what is printed
        if nll != "none":
            ratio = float(nll) / float(beta)
            assert ratio * math.exp(1 - ratio) == pytest.approx(float(weight), abs=0.01)
    assert "Seed 0 (another aopsd.seed " in flat
    for row in range(1, len(expected) + 1):
        assert f"#{row}»" in flat
    reached = ", ".join(sorted(rollout.draft.reached)) or "none"
    assert f"Reached, with all prerequisites: {reached} (progress {rollout.draft.progress:.2f})" in flat


def test_reads_the_same_without_colours():
    aopsd = AOPSDConfig(probes=ProbeConfig(threshold=1.0))
    bare, _ = preview(aopsd)
    coloured, _ = preview(aopsd, terminal=True)
    assert "\x1b" not in bare
    assert "\x1b[" in coloured
    stripped = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", coloured)
    body, same = (
        re.sub(r"-+\n", "\n", text[text.index("3. How") : text.index("Seconds")]) for text in (bare, stripped)
    )
    assert body == same


def test_what_is_not_asked_for_is_said():
    context = ContextConfig(kind="other_problem")
    text, _ = preview(AOPSDConfig(weighting="uniform", context=context, curriculum=CurriculumConfig(name="shuffle")))
    assert "Weighting uniform: no probes" in text and "teacher continues" not in text
    assert "Not judged: neither context other_problem nor the curriculum uses progress" in text
    assert "Add one to" in text  # the solution of another problem


def scripted(response: str, verdict: str, finished: bool = True):
    """An engine whose student writes one given response and whose judge says `verdict`."""
    made, encode, decode = engine(), CharTokenizer().encode, CharTokenizer().decode

    def answer(prompt):
        tokens = encode(verdict if decode(prompt).startswith("You check") else response)
        return Generation([*tokens, END] if finished else tokens, finished)

    made.student.generate = lambda prompts, sampling, seed: list(map(answer, prompts))
    return made


def test_an_unreadable_verdict_is_quoted_and_a_dropped_rollout_says_why():
    text, _ = preview(AOPSDConfig(), scripted("x", "no idea"))
    assert "verdict cannot be read, so nothing counts as reached. It said: 'no idea'" in text
    shown = ContextConfig(kind="dag_full", on_overlong="drop")
    aopsd = AOPSDConfig(context=shown, curriculum=CurriculumConfig(name="shuffle"))
    text, _ = preview(aopsd, scripted("answer", "[]"), max_total_sequence_length=300)
    assert "this rollout is dropped" in text and "answer<end>" in text


def test_a_response_says_whether_it_is_right():
    found = [(rf"so \boxed{{{PROBLEMS[1].answer}}}", "is right"), (r"so \boxed{-1}", "is wrong"), ("so", "no answer")]
    for response, said in found:
        text, _ = preview(AOPSDConfig(), scripted(response, "[]"))
        assert len(re.findall(r"^It(?:s| gives) .*answer.*\.$", text, re.MULTILINE)) == 1 and said in text


def test_an_empty_unfinished_response_and_one_that_would_steer_the_terminal():
    text, _ = preview(AOPSDConfig(), scripted("", "[]", finished=False))
    assert "(an empty response)" in text and "0 tokens, cut off at the length limit" in text
    assert "Mean |gap| not defined; 0 of 0 tokens" in text
    text, _ = preview(AOPSDConfig(probes=ProbeConfig(threshold=50.0)), scripted("[bold]a\x0bb[/bold]", "[]"))
    assert r"[bold]a\x0bb[/bold]<end>" in text
    assert gap_text(["\x1b[2J"], [False]).plain == r"\x1b[2J"


def test_marks_by_hand_and_narrow_terminals_lose_no_value():
    text = gap_text(["a", "b", "\n", "c"], [False, True, False, True])
    assert text.plain == "a«b #1»\n«c #2»"
    text, _ = preview(AOPSDConfig(probes=ProbeConfig(threshold=1.0)), width=40)
    assert "…" not in text and max(map(len, text.splitlines())) <= 40


@pytest.mark.slow
def test_the_readme_s_example_shows_a_probe():
    """What it is there for: a guess, and the teacher that goes on with the next checkpoint instead."""
    words = ["preview", "demo", "--problem", "train-030-level5"]
    for place in ("README.md", "nemo_aopsd/cli/train.py"):
        assert f"aopsd {' '.join(words)}" in (REPO / place).read_text(encoding="utf-8")
    text = CliRunner(env={"COLUMNS": "120"}).invoke(app, words).stdout
    assert "Disclosed to the teacher: 80%" in text and "discloses 80 %" in (REPO / "README.md").read_text("utf-8")
    assert "« hmm #1»" in text and re.search(r"^1 .*hmm .*afterwards .* 0\.92$", text, re.MULTILINE), text
