from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nemo_aopsd.config.schema import (
    AOPSDConfig,
    ContextConfig,
    CurriculumConfig,
    ProbeConfig,
)
from nemo_aopsd.data import dag
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import disclose
from nemo_aopsd.method.objectives.pg import PolicyGradient
from nemo_aopsd.method.step import train_step
from nemo_aopsd.run.metrics import step_metrics
from nemo_aopsd.run.records import rollout_record
from nemo_aopsd.types import Generation
from tests.fakes import END, CharTokenizer, FakeEngine, make_config, make_engine, make_problem, random_table

PROBLEMS = [make_problem(index) for index in range(4)]


def step(engine, aopsd=None, problems=PROBLEMS, seed=0, **policy):
    config = make_config(Path("unused"), aopsd or AOPSDConfig(probes=ProbeConfig(threshold=1.0)), **policy)
    objective = PolicyGradient(config.aopsd.objective)
    donors = {problem.id: problems[0] for problem in problems}
    return train_step(problems, engine, objective, config, donors=donors, seed=seed), config


def test_solutions_are_scored_where_sampling_would_have_said_the_log_probs():
    class OnSolutions(PolicyGradient):
        on_policy_rate = 0.0

    config = make_config(Path("unused"), AOPSDConfig(scoring="sampler", weighting="uniform"))
    engine, donors = make_engine(), {problem.id: PROBLEMS[0] for problem in PROBLEMS}
    result = train_step(PROBLEMS, engine, OnSolutions(config.aopsd.objective), config, donors=donors, seed=0)
    assert all(row.draft.is_demonstration and row.gap is not None for row in result.scored)


def test_every_stage_hands_on_the_same_response_ids():
    engine = make_engine()
    before = engine.student.logits.detach().clone()
    result, config = step(engine)
    assert len(result.drafts) == len(PROBLEMS)
    for rollout, row in zip(result.scored, engine.trained[0], strict=True):
        assert row.response == rollout.draft.output.tokens
        assert CharTokenizer().decode(rollout.draft.student_prompt).startswith(rollout.draft.problem.problem)
        assert rollout.draft.reached == dag.largest_closed_subset(
            rollout.draft.problem.dag, rollout.draft.verdict.judged
        )
        shown = disclose(rollout.draft.problem, rollout.draft.reached)
        assert shown in CharTokenizer().decode(rollout.draft.teacher_prompt)
        student = before.log_softmax(-1)[[rollout.draft.student_prompt[-1], *row.response[:-1]], row.response]
        teacher = engine.teacher.table()[[rollout.draft.teacher_prompt[-1], *row.response[:-1]], row.response]
        assert torch.allclose(row.old_logprobs.double(), student, atol=1e-6)
        assert torch.allclose(row.teacher_logprobs.double(), teacher.detach(), atol=1e-6)
        probed = {probe.position: probe.weight for probe in rollout.probes}
        assert set(probed) == {t for t, g in enumerate((teacher - student).tolist()) if abs(g) >= 1.0}
        assert row.weights.tolist() == pytest.approx([probed.get(t, 1.0) for t in range(len(row.response))])
    assert any(rollout.probes for rollout in result.scored)
    metrics = step_metrics(result, config.aopsd, [False] * 4)
    assert metrics["probe/count"] == sum(len(rollout.probes) for rollout in result.scored)
    assert 0 < metrics["probe/weight_mean"] <= 1


def test_teacher_equal_to_student_and_empty_context_is_the_identity():
    table = random_table(5)
    engine = FakeEngine(table, table)
    aopsd = AOPSDConfig(context=ContextConfig(kind="none"), curriculum=CurriculumConfig(name="shuffle"))
    result, config = step(engine, aopsd)
    metrics = step_metrics(result, config.aopsd, [False] * 4)
    assert metrics["gap/mean_abs"] < 1e-4
    assert metrics["probe/count"] == 0
    assert metrics["train/grad_norm"] < 1e-6
    assert all(draft.verdict is None for draft in result.drafts)  # nobody asked for progress


def weighed(weighting, **probes):
    aopsd = AOPSDConfig(weighting=weighting, probes=ProbeConfig(threshold=1.0, **probes))
    result, config = step(make_engine(), aopsd)
    weights = torch.cat([rollout.weights for rollout in result.scored])
    gaps = torch.cat([rollout.gap for rollout in result.scored])
    return weights, gaps.abs() >= 1.0, step_metrics(result, config.aopsd, [False] * 4)


def test_the_controls_change_the_weights_of_triggered_tokens_only():
    weights, triggered, _ = weighed("continuation")
    for weighting in ("shuffled", "constant", "gap_matched", "gap_only", "zero_triggered"):
        found, same_triggers, _ = weighed(weighting)
        assert torch.equal(triggered, same_triggers)
        assert (found[~triggered] == 1).all()
        assert not torch.equal(found[triggered], weights[triggered])
    shuffled, constant = weighed("shuffled")[0], weighed("constant")[0]
    assert torch.equal(shuffled[triggered].sort().values, weights[triggered].sort().values)
    assert constant[triggered].tolist() == pytest.approx([weights[triggered].mean().item()] * int(triggered.sum()))
    assert weighed("shuffled")[2]["probe/weight_mean"] == pytest.approx(weights[triggered].mean().item())


def test_untriggered_tokens_have_the_weight_that_is_set_for_them():
    found, triggered, _ = weighed("normalised", untriggered_weight=0.25)
    assert (found[~triggered] == 0.25).all()


def test_weights_of_a_step_are_made_of_the_rows_that_are_trained_on():
    def trained(weighting):
        engine = FakeEngine(random_table(0, end_boost=2.0), random_table(1, end_boost=2.0))
        probes = ProbeConfig(threshold=0.5)
        aopsd = AOPSDConfig(weighting=weighting, mask_truncated=True, num_generations_per_prompt=4, probes=probes)
        step(engine, aopsd, generation={"max_new_tokens": 8})
        return [
            torch.cat([value(row) for row in engine.trained[0]])
            for value in (lambda row: row.weights, lambda row: row.gap.abs(), lambda row: row.mask)
        ]

    own, gaps, mask = trained("continuation")
    found, *same = trained("gap_matched")
    assert torch.equal(same[0], gaps) and torch.equal(same[1], mask)
    counted, masked = mask & (gaps >= 0.5), ~mask & (gaps >= 0.5)
    assert counted.sum() > 4 and masked.sum() > 4
    assert own[counted].mean().item() != pytest.approx(own[masked].mean().item(), rel=0.01)  # they would be seen
    assert torch.equal(found[masked], own[masked])
    assert (found * gaps)[counted].sum().item() == pytest.approx((own * gaps)[counted].sum().item())


def test_a_weighting_of_ones_own_sees_the_rows_that_are_trained_on(tmp_path):
    """Its weights tell how many it saw."""
    (tmp_path / "shares.py").write_text(
        "import torch\n\n\nclass Shares:\n    continues = False\n\n    def __init__(self, aopsd):\n        pass\n\n"
        "    def weigh(self, gaps, probes):\n        return [torch.full_like(gap, 1 / len(gaps)) for gap in gaps]\n"
    )
    engine = FakeEngine(random_table(0, end_boost=2.0), random_table(1, end_boost=2.0))
    aopsd = AOPSDConfig(weighting=f"{tmp_path}/shares.py:Shares", mask_truncated=True, num_generations_per_prompt=4)
    step(engine, aopsd, generation={"max_new_tokens": 8})
    counted, masked = (
        [row.weights for row in engine.trained[0] if bool(row.mask.any()) == kept] for kept in (True, False)
    )
    assert counted and masked
    assert torch.cat(counted).tolist() == pytest.approx([1 / len(counted)] * len(torch.cat(counted)))
    assert (torch.cat(masked) == 1).all()


def test_the_constant_negative_advantage_is_the_same_at_every_token_and_records_keep_the_teachers_gaps():
    engine = make_engine()
    result, _ = step(engine, AOPSDConfig(weighting="constant_negative"))
    gaps = torch.cat([rollout.gap for rollout in result.scored])
    advantages = torch.cat([row.weights * (row.teacher_logprobs - row.old_logprobs) for row in engine.trained[0]])
    assert advantages.tolist() == pytest.approx([-gaps.abs().mean().item()] * len(gaps), abs=1e-6)
    assert gaps.std() > 0.1


@pytest.mark.parametrize("weighting", ["uniform", "constant_negative", "gap_only", "zero_triggered"])
def test_weightings_of_the_gap_ask_for_no_continuation(weighting):
    engine = make_engine()
    engine.teacher.continue_greedily = None  # would fail if called
    result, config = step(engine, AOPSDConfig(weighting=weighting, probes=ProbeConfig(threshold=1.0)))
    assert all(rollout.probes == [] for rollout in result.scored)
    assert any((rollout.weights < 1).any() for rollout in result.scored) == (
        weighting in ("gap_only", "zero_triggered")
    )
    assert "probe/count" not in step_metrics(result, config.aopsd, [False] * 4)


@pytest.mark.parametrize(
    "kind", ["none", "solution", "plan", "subproblems", "dag_full", "dag_frontier", "other_problem"]
)
def test_every_context_runs(kind):
    result, config = step(make_engine(), AOPSDConfig(context=ContextConfig(kind=kind)))
    metrics = step_metrics(result, config.aopsd, [False] * 4)
    assert ("dag/disclosed_share" in metrics) == kind.startswith("dag")
    assert all(rollout_record(*pair, CharTokenizer(), kind)["teacher_prompt"] for pair in result.pairs())


def longest_teacher_row(result) -> int:
    return max(len(draft.teacher_prompt) + len(draft.output.tokens) for draft in result.drafts)


def test_an_overlong_teacher_row_is_an_error_that_names_the_problem_or_a_counted_drop():
    strict = AOPSDConfig(context=ContextConfig(kind="dag_full"), curriculum=CurriculumConfig(name="shuffle"))
    reference, _ = step(make_engine(), strict)
    limit = longest_teacher_row(reference) + 8  # k tokens of a probe must fit too
    step(make_engine(), strict, max_total_sequence_length=limit)
    with pytest.raises(UserError, match=r"problems.jsonl:\d+: problem 'p00\d'.*max_total_sequence_length"):
        step(make_engine(), strict, max_total_sequence_length=limit - 1)
    no_probes = replace(strict, weighting="uniform")  # which need no room for one
    step(make_engine(), no_probes, max_total_sequence_length=limit - 8)
    with pytest.raises(UserError, match=r"\+ probe 0 ="):
        step(make_engine(), no_probes, max_total_sequence_length=limit - 9)
    aopsd = replace(strict, context=ContextConfig(kind="dag_full", on_overlong="drop"))
    engine = make_engine()
    result, config = step(engine, aopsd, max_total_sequence_length=limit - 1)
    dropped = [draft for draft in result.drafts if not draft.fits]
    assert 1 <= len(dropped) < 4
    assert len(engine.trained[0]) == 4 - len(dropped)
    assert step_metrics(result, config.aopsd, [False] * 4)["context/dropped"] == len(dropped)
    assert rollout_record(dropped[0], None, CharTokenizer(), "dag_frontier")["student_logprobs"] is None


def test_all_rows_dropped_trains_on_nothing_and_stays_finite():
    shown = ContextConfig(kind="solution", on_overlong="drop")
    aopsd = AOPSDConfig(context=shown, curriculum=CurriculumConfig(name="shuffle"))
    result, config = step(make_engine(), aopsd, max_total_sequence_length=1)
    metrics = step_metrics(result, config.aopsd, [False] * 4)
    assert metrics["context/dropped"] == 4
    assert metrics["train/skipped"] == 1
    assert all(value == value and abs(value) < float("inf") for value in metrics.values())


@pytest.mark.parametrize("masked", [False, True])
def test_truncated_rollouts_stay_in_the_loss_unless_masked_and_are_always_counted_and_judged(masked):
    engine = FakeEngine(random_table(0, end_boost=-50), random_table(1))
    result, config = step(engine, AOPSDConfig(mask_truncated=masked))
    metrics = step_metrics(result, config.aopsd, [False] * 4)
    assert metrics["rollout/truncated"] == 4
    assert all(draft.verdict is not None for draft in result.drafts)
    assert all(bool(row.mask.any()) != masked for row in engine.trained[0])
    assert metrics.get("train/skipped", 0) == masked


def test_an_empty_response_and_a_batch_of_one_stay_finite():
    engine = make_engine()
    generate = engine.student.generate
    engine.student.generate = lambda prompts, sampling, seed: [
        output if output.tokens[-1:] == [END] and "[" in CharTokenizer().decode(output.tokens) else Generation([], True)
        for output in generate(prompts, sampling, seed)
    ]
    result, config = step(engine, problems=PROBLEMS[:1])
    metrics = step_metrics(result, config.aopsd, [False])
    assert metrics["rollout/mean_tokens"] == 0
    assert "gap/mean_abs" not in metrics
    assert all(value == value and abs(value) < float("inf") for value in metrics.values())


def test_the_same_seed_gives_the_same_step_and_another_seed_another():
    runs = [step(make_engine(), seed=seed)[0].drafts for seed in (3, 3, 4)]
    tokens = [[draft.output.tokens for draft in run] for run in runs]
    assert tokens[0] == tokens[1] != tokens[2]
    assert [draft.reached for draft in runs[0]] == [draft.reached for draft in runs[1]]
