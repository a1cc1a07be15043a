import io
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from nemo_aopsd.config.schema import AOPSDConfig
from nemo_aopsd.console import STEP_LINE, Whole, show_page, step_line
from nemo_aopsd.method.judge import Verdict
from nemo_aopsd.method.probes import Probe
from nemo_aopsd.method.rollout import Collection, Draft, Scored, StepResult
from nemo_aopsd.method.weighting import probe_weights
from nemo_aopsd.run.metrics import step_metrics
from nemo_aopsd.run.records import rollout_record
from nemo_aopsd.types import Generation, TopK
from tests import REPO
from tests.fakes import CharTokenizer, make_problem

VERDICT = Verdict(frozenset({"a", "b", "d"}), failed=False, cut=False, text='["a", "b", "d"]')


def make_draft(num_tokens: int) -> Draft:
    output = Generation(list(range(5, 5 + num_tokens)), True)
    return Draft(make_problem(0), [1, 2], output, teacher_prompt=[1, 2, 3]).judged(VERDICT)


def make_scored(gap: list[float], probes: list[Probe]) -> Scored:
    student = torch.full((len(gap),), -1.0)
    weights = probe_weights(probes, len(gap))
    teacher = student + torch.tensor(gap)
    return Scored(make_draft(len(gap)), weights, student, teacher, probes=probes)


def metrics_of(drafts: list[Draft], scored: list[Scored], mask_truncated: bool = False) -> dict[str, float]:
    result = StepResult(drafts, scored, {"rollout": 2.0, "update": 1.0}, {"train/loss": 0.25})
    return step_metrics(result, AOPSDConfig(mask_truncated=mask_truncated), [False] * (len(drafts) - 1) + [True])


def test_scores_of_another_length_than_the_response_are_refused():
    row = make_scored([0.5, 1.0], [])
    for name in ("weights", "student_logprobs", "teacher_logprobs"):
        for length in (0, 1, 3):
            with pytest.raises(ValueError, match="log-probs"):
                replace(row, **{name: torch.zeros(length)})
    with pytest.raises(ValueError, match="log-probs"):
        replace(row, top_k=TopK(torch.zeros(1, 4), torch.zeros(1, 4), torch.zeros(1)))


def test_each_draft_meets_its_own_scores():
    rows = [make_scored([0.5], []), make_scored([0.1, 0.2], [])]
    left = replace(make_draft(3), fits=False)
    found = Collection([rows[0].draft, left, rows[1].draft], rows, {})
    assert list(found.pairs()) == [(rows[0].draft, rows[0]), (left, None), (rows[1].draft, rows[1])]


def test_numbers_of_a_small_step_by_hand():
    probe = Probe(position=1, gap=-2.5, anchor=9, suffix=[7, 8], nll=1.5, weight=0.5)
    empty = Probe(position=0, gap=2.0, anchor=0, suffix=[], nll=None, weight=1.0)
    rows = [make_scored([0.5, -2.5, 0.0, 1.0], [probe]), make_scored([2.0, -4.0], [empty])]
    metrics = metrics_of([row.draft for row in rows], rows)
    assert metrics == pytest.approx(
        {
            "rollout/count": 2,
            "rollout/mean_tokens": 3,
            "rollout/truncated": 0,
            "rollout/leak_rate": 0.5,
            "context/dropped": 0,
            "judge/failed": 0,
            "judge/cut": 0,
            "dag/progress": 0.5,
            "dag/disclosed_share": 0.75,  # a, b and the frontier c of a, b -> c -> d
            "gap/mean_abs": 10 / 6,
            "gap/max_abs": 4,
            "gap/token_share_1": 4 / 6,
            "gap/mass_share_1": 9.5 / 10,
            "gap/token_share_2": 3 / 6,
            "gap/mass_share_2": 8.5 / 10,
            "probe/count": 2,
            "probe/unprobed": 1,  # the -4 of the second rollout
            "probe/positive": 1,
            "probe/empty": 1,
            "probe/trigger_rate": 3 / 6,
            "probe/nll_mean": 1.5,
            "probe/weight_mean": 0.75,
            "weight/mean": 5.5 / 6,  # of 0.5, 1, 1, 1, 1, 1
            "weight/p5": 0.5 + 0.25 * 0.5,
            "weight/p50": 1,
            "weight/p95": 1,
            "train/loss": 0.25,
            "time/rollout": 2,
            "time/update": 1,
            "time/step": 3,
        }
    )


def test_weights_without_effect_are_no_part_of_the_means():
    probe = Probe(position=0, gap=-2.5, anchor=9, suffix=[7, 8], nll=1.5, weight=0.5)
    row, cut = make_scored([-2.5, 0.0], [probe]), make_scored([-2.5], [replace(probe, weight=0.1)])
    cut = replace(cut, draft=replace(cut.draft, output=replace(cut.draft.output, finished=False)))
    rows, drafts = [row, cut], [row.draft, cut.draft]
    found = metrics_of(drafts, rows, mask_truncated=True)
    assert (found["weight/mean"], found["probe/weight_mean"], found["probe/count"]) == (0.75, 0.5, 2)
    found = metrics_of(drafts, rows)
    assert (found["weight/mean"], found["probe/weight_mean"]) == pytest.approx((1.6 / 3, 0.3))


def test_what_does_not_apply_is_absent_and_never_0():
    unread = replace(VERDICT, failed=True, judged=frozenset())
    dropped = replace(make_draft(1).judged(unread), fits=False)
    metrics = metrics_of([dropped], [])
    assert metrics["judge/failed"] == metrics["context/dropped"] == 1
    assert not {"dag/progress", "gap/mean_abs", "probe/trigger_rate", "probe/nll_mean"} & set(metrics)
    assert rollout_record(dropped, None, CharTokenizer(), "dag_frontier")["progress"] is None


def test_a_record_holds_what_the_figures_need():
    probe = Probe(position=1, gap=-2.5, anchor=9, suffix=[7, 8], nll=1.5, weight=0.5)
    row = make_scored([0.5, -2.5], [probe])
    record = rollout_record(row.draft, row, CharTokenizer(), "dag_frontier")
    assert record["judged"] == ["a", "b", "d"] and record["reached"] == ["a", "b"]
    assert record["teacher_logprobs"] == [-0.5, -3.5] and record["weights"] == [1.0, 0.5]
    assert "".join(record["pieces"]) == record["response_text"]
    assert record["probes"][0]["suffix_text"] == CharTokenizer().decode([7, 8])


def test_the_line_of_a_step_names_trouble_only_where_there_is_some():
    least = {"epoch": 0, "step": 3, "rollout/count": 8, "rollout/mean_tokens": 50, "time/step": 1.25}
    quiet = step_line(least | {"train/loss": -0.5, "judge/failed": 0}, Whole(epochs=2, steps=12, seconds_left=75.0))
    assert quiet == "step 3/12  1 min 15 s left  loss -0.5000  tokens 50  took 1.2 s  epoch 1/2  320 tokens/s"
    probed = {"gap/mean_abs": 0.44, "probe/nll_mean": 1.15, "probe/weight_mean": 0.66}
    told = step_line(least | probed, Whole(epochs=2, steps=12, seconds_left=75.0))
    assert "  |gap| 0.440  tokens " in told and "  surprise 1.15  probed weight 0.66  epoch " in told
    last = step_line(least | {"judge/failed": 2, "time/step": 0.0}, Whole(epochs=1, steps=3, seconds_left=0.0))
    assert last == "step 3/3  last step  tokens 50  took 0.0 s  unread verdicts 2  epoch 1/1"


def test_on_a_terminal_the_line_ends_where_it_is_full_and_in_a_log_it_is_whole():
    metrics = {"epoch": 0, "step": 8, "rollout/count": 8, "rollout/mean_tokens": 80, "time/step": 3.1}
    metrics |= {"train/loss": 0.0964, "train/grad_norm": 0.425, "gap/mean_abs": 0.361, "probe/trigger_rate": 0.017}
    metrics["dag/progress"] = 0.7
    whole = Whole(epochs=3, steps=36, seconds_left=75.0)
    start = "step 8/36  1 min 15 s left  loss +0.0964  progress 0.70  |gap| 0.361"
    assert step_line(metrics, whole, 80) == f"{start}  ..."
    entire = f"{start}  triggered 1.70%  tokens 80  took 3.1 s  grad 0.425  epoch 1/3  206 tokens/s"
    assert step_line(metrics, whole, 100) == f"{start}  triggered 1.70%  ..."
    assert step_line(metrics, whole, len(entire)) == step_line(metrics, whole) == entire


def test_the_line_tells_the_weights_of_a_weighting_without_probes_and_where_they_differ():
    least = {"epoch": 0, "step": 3, "rollout/count": 8, "rollout/mean_tokens": 50, "time/step": 1.25}
    whole, own = Whole(1, 3, 0.0), {"weight/mean": 0.5, "weight/p5": 0.05, "weight/p50": 0.5, "weight/p95": 0.95}
    probed = {"probe/weight_mean": 0.66}
    assert "  weight 0.50 (90 % from 0.05 to 0.95)  " in step_line(least | own, whole)
    assert "  probed weight 0.66  weight 0.50 (90 % from 0.05 to 0.95)  " in step_line(least | own | probed, whole)
    alike = own | {"weight/mean": 0.99, "weight/p5": 0.999, "weight/p95": 1.0}  # of a mean beside the range
    assert "  weight 0.99  epoch " in step_line(least | alike, whole)
    assert "  probed weight 0.66  epoch " in step_line(least | alike | probed, whole)


def test_the_legend_explains_each_number_of_the_line():
    page = (REPO / "docs/reading_runs.md").read_text().split("## The line of a step")[1].split("\n## ")[0]
    rows = [line.replace(r"\|", "|") for line in page.splitlines()]
    legend = [re.match(r"\| `(.+?)` \| `(\w+/\w+)` \| \S", row) for row in rows]
    told = {match[2]: match[1] for match in legend if match}
    assert told == {key: label for key, (label, _) in STEP_LINE.items()}
    known = (REPO / "docs/run_folder.md").read_text()
    assert all(f"`{key}`" in known for key in told)


@pytest.mark.parametrize(("weighting", "told"), [("uniform", False), ("constant_negative", False), ("gap_only", True)])
def test_weights_are_told_where_they_are_not_all_1(weighting, told):
    row = replace(make_scored([0.5, 1.0], []), weights=torch.tensor([0.2, 0.6]))
    metrics = step_metrics(StepResult([row.draft], [row], {}, {}), AOPSDConfig(weighting=weighting), [False])
    assert {key: metrics[key] for key in metrics if key.startswith("weight/")} == pytest.approx(
        {"weight/mean": 0.4, "weight/p5": 0.22, "weight/p50": 0.4, "weight/p95": 0.58} if told else {}
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_a_page_is_drawn_on_a_terminal_and_printed_as_it_is_elsewhere(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80, no_color=True)
    show_page("## Gaps\n\n![Gaps](gaps.svg)\n\n| \\|gap\\| | n |\n| --- | --- |\n| 0.5 | 7 |\n", console)
    printed = console.file.getvalue()
    assert ("| --- |" in printed) == ("gaps.svg" in printed) == (not terminal)
    assert "7" in printed


def test_no_letter_of_a_table_is_lost_on_a_narrow_terminal():
    words = ["corrections", "references", "intervals", "benchmarks", "truncated"]
    page = "\n".join(f"| {' | '.join(row)} |" for row in (words, ["---"] * 5, words))
    console = Console(file=io.StringIO(), width=40, force_terminal=True, color_system=None)
    show_page(page, console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 40 and "…" not in "".join(lines)
    for letters in set("".join(words)):
        assert "".join(lines).count(letters) == 2 * "".join(words).count(letters)
