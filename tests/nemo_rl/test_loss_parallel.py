"""Our losses on tensor-, context-, pipeline- and data-parallel CPU processes against float64 on whole logits in one.

What runs is in `loss_on_ranks`: all of NeMo RL's Megatron path but the model itself, so not its attention.
"""

import importlib.util
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest
import torch

if importlib.util.find_spec("megatron.core") is None:
    pytest.skip("megatron.core is not installed", allow_module_level=True)
if not torch.distributed.is_gloo_available():
    pytest.skip("torch.distributed has no gloo, which the processes talk through", allow_module_level=True)

from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossConfig

from nemo_aopsd.engines.nemo_rl.batches import response_spans, top_k_spans, training_batch
from nemo_aopsd.engines.nemo_rl.loss import OWN_METRICS, AOPSDLossFn
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.types import TopK
from tests.nemo_rl.parallel_cases import (
    ALL_ROWS,
    BLOCKS,
    LAYOUTS,
    LOSSES,
    OWN,
    PAD,
    PAD_TO,
    PG,
    TOP_K,
    K,
    logprobs,
    rows_for,
    student,
    teacher,
    texts,
    train_rows,
)
from tests.nemo_rl.test_loss import EXTREMES

pytestmark = pytest.mark.slow
TIME_LIMIT = 300  # seconds; on two cores it takes 25 with two processes, 40 with four
WORLDS = {layout: world for world, layouts in LAYOUTS.items() for layout in layouts}
CASES = [(layout, loss, name) for layout in WORLDS for loss in LOSSES for name in rows_for(layout, loss)]
SCORES = [(layout, name) for layout in WORLDS for name in rows_for(layout, "pg") if not ALL_ROWS[name].fuse]


def named(layout, *names):
    return ", ".join(["TP {} CP {} PP {} DP {}".format(*layout), *names])


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    """Gives what all ranks found in a layout: a list of dicts, one a rank of the last stage."""
    found = {}

    def run(world):
        folder = tmp_path_factory.mktemp(f"ranks{world}")
        command = [sys.executable, "-m", "tests.nemo_rl.loss_on_ranks", str(world), str(folder)]
        with open(folder / "log", "w") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
            try:
                code = process.wait(TIME_LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = f"no end in {TIME_LIMIT} s"
        assert code == 0, f"{code}: {(folder / 'log').read_text()[-4000:]}"
        return [torch.load(folder / f"{rank}.pt") for rank in range(world)]

    def of(*case):
        world = WORLDS[case[0]]
        if world not in found:
            found[world] = f"a run of {world} processes failed, see the first test that needed it"
            found[world] = run(world)
        assert not isinstance(found[world], str), found[world]
        return [each[case] for each in found[world] if each[case]["is_last"]]

    return of


def joined(ranks):
    """Sum of metrics over micro-batches and data-parallel ranks, and the whole gradient; the others must agree."""
    metrics, gradients, extremes = Counter(), {}, []
    for rank in ranks:
        own = Counter()
        for part in rank["metrics"]:
            own.update({name: value for name, value in part.items() if name not in EXTREMES})
            extremes.append({name: value for name, value in part.items() if name in EXTREMES})
        first = next(other for other in ranks if other["data"] == rank["data"])
        assert rank["metrics"] == first["metrics"]
        if rank is first:
            metrics.update(own)
        others = gradients.setdefault(rank["tensor"], rank["gradient"])
        torch.testing.assert_close(rank["gradient"][1:], others[1:], rtol=0, atol=0)
    gradient = torch.cat([gradients[tensor] for tensor in sorted(gradients)], dim=1)
    for name in extremes[0]:
        values = [part[name] for part in extremes]
        metrics[name] = max(values) if "_max" in name else min(values)
    return dict(metrics), gradient


# ---- the references: float64, whole logits, no NeMo RL


def policy_gradient(block):
    """Loss, our own metrics and gradient [V, V] of eq:weighted-advantage, written out."""
    logits, rows = student().double().requires_grad_(True), train_rows()
    num_tokens = sum(row.mask.sum().item() for row in rows)
    loss, metrics = 0.0, Counter()
    for row in rows:
        before, ids = [row.prompt[-1], *row.response[:-1]], torch.tensor(row.response)
        current = logits[before].log_softmax(-1)[torch.arange(len(ids)), ids]
        raw = row.weights * (row.teacher_logprobs - current.detach())
        advantage = raw.clamp(-PG.advantage_clip, PG.advantage_clip)
        ratio = (current - row.old_logprobs).exp()
        clipped = ratio.clamp(1 - PG.ratio_clip_min, 1 + PG.ratio_clip_max)
        terms = -torch.minimum(ratio * advantage, clipped * advantage)
        if block.get("use_importance_sampling_correction"):
            terms = terms * (row.old_logprobs - row.sampler_logprobs).exp()
        loss = loss + (
            terms[row.mask].sum() / num_tokens
            if block.get("token_level_loss", True)
            else terms[row.mask].mean() / len(rows)
        )
        values = (raw.abs() > PG.advantage_clip, clipped * advantage < ratio * advantage, advantage.abs())
        metrics.update(
            {
                name: (value[row.mask].double().sum() / num_tokens).item()
                for name, value in zip(OWN_METRICS, values, strict=True)
            }
        )
    loss.backward()
    return loss.item(), dict(metrics), logits.grad


def parents_metrics(block):
    """All metrics that NeMo RL's loss adds: of one call on the whole batch's log-probs."""
    rows = train_rows()
    batch = training_batch(rows, pad_id=PAD, divisible_by=PAD_TO, rows_multiple=1)
    current = torch.zeros(batch["input_ids"].shape, dtype=torch.float64)
    for target, row in zip(current, rows, strict=True):
        own = logprobs(student(), row.prompt, row.response)[torch.arange(len(row.response)), row.response]
        target[len(row.prompt) : len(row.prompt) + len(row.response)] = own
    function = AOPSDLossFn(ClippedPGLossConfig(reference_policy_kl_penalty=0, **block), PG)
    counts = batch["sample_mask"].sum(), batch["token_mask"][:, 1:].sum()
    return function(current[:, 1:], batch, *counts)[1]


def top_k_objective(config):
    logits, function, rows = student().double().requires_grad_(True), build_objective(config), train_rows()
    num_tokens = sum(row.mask.sum().item() for row in rows)
    total, metrics = 0.0, Counter()
    for row in rows:
        current = logits[[row.prompt[-1], *row.response[:-1]]].log_softmax(-1)
        top = TopK(row.top_k.ids, row.top_k.logprobs.double(), row.top_k.entropy)
        divergence = function.divergence(current, top)[None]
        counts = {"mask": row.mask[None], "num_tokens": num_tokens, "num_rows": len(rows)}
        loss, found = function(divergence, divergence=divergence, **counts)
        total = total + loss
        metrics.update({name.removeprefix("train/"): value.item() for name, value in found.items()})
    total.backward()
    return total.item(), dict(metrics), logits.grad


def half_squared_gap(config):
    """Of examples/my_parts.py, written out."""
    logits, rows = student().double().requires_grad_(True), train_rows()
    terms = []
    for row in rows:
        current = logits[[row.prompt[-1], *row.response[:-1]]].log_softmax(-1)
        current = current[torch.arange(len(row.response)), row.response]
        terms.append((row.weights * (current - row.teacher_logprobs) ** 2 / 2)[row.mask])
    loss = torch.cat(terms).mean() if config.aggregation == "token_mean" else sum(map(torch.mean, terms)) / len(rows)
    loss.backward()
    return loss.item(), {"loss": loss.item()}, logits.grad


@pytest.fixture(scope="module")
def references():
    found = {loss: policy_gradient(block) for loss, block in BLOCKS.items()}
    for loss, block in BLOCKS.items():
        value, own, gradient = found[loss]
        found[loss] = value, parents_metrics(block) | own, gradient
    found |= {loss: top_k_objective(config) for loss, config in TOP_K.items()}
    return found | {loss: half_squared_gap(config) for loss, config in OWN.items()}


# ---- the tests


@pytest.mark.parametrize("case", CASES, ids=lambda case: named(*case))
def test_loss_metrics_and_the_gradient_by_each_logit_are_those_of_one_process(on_ranks, references, case):
    ranks = on_ranks(*case)
    metrics, gradient = joined(ranks)
    loss, expected, expected_gradient = references[case[1]]
    assert metrics["loss"] == pytest.approx(loss, abs=2e-6)
    assert metrics == pytest.approx(expected, rel=1e-5, abs=2e-6)
    torch.testing.assert_close(gradient[1:].double(), expected_gradient[1:], rtol=1e-4, atol=1e-7)
    rows, copies = ALL_ROWS[case[2]], case[0][3]
    whole_batch = 4 if not rows.tokens else 1 if rows.tokens == 240 else 2  # in rows or packs
    assert {rank["number"] for rank in ranks} == {max(1, whole_batch // (copies * rows.micro_batch))}


def test_the_batch_tries_what_it_should(references):
    """Clips bind for some tokens and not for others; each position has a gradient of its own."""
    _, metrics, gradient = references["pg"]
    assert all(0.05 < metrics[name] < 0.95 for name in OWN_METRICS)
    prompts, responses, _ = texts()
    ids = [token for text in (*prompts, *responses) for token in text]
    assert len(ids) == len(set(ids)) and PAD not in ids
    with_gradient = set(gradient[1:].abs().sum(1).gt(1e-5).nonzero().flatten().add(1).tolist())
    allowed = {
        token for prompt, response in zip(prompts, responses, strict=True) for token in (prompt[-1], *response[:-1])
    }
    assert with_gradient <= allowed and len(with_gradient) > 60


@pytest.mark.parametrize("case", SCORES, ids=lambda case: named(*case))
def test_the_teachers_scores_and_top_k_are_those_of_one_process(on_ranks, case):
    layout, name = case
    _, responses, prompts = texts()
    for rank in on_ranks(layout, "scores", name):
        rows = [rank["input_ids"][i].tolist() for i in range(len(rank["input_ids"]))]
        here = [next(i for i, text in enumerate(responses) if text[0] in row) for row in rows]
        assert layout[3] > 1 or sorted(here) == [0, 1, 2, 3]
        mine = [prompts[i] for i in here], [responses[i] for i in here]
        spans, tops = response_spans(rank["logprobs"], *mine), top_k_spans(rank, *mine)
        for span, top, prompt, response in zip(spans, tops, *mine, strict=True):
            expected = logprobs(teacher(), prompt, response)
            own = expected[torch.arange(len(response)), response]
            torch.testing.assert_close(span.double(), own, rtol=0, atol=1e-5)
            values, ids = expected.topk(K)
            assert torch.equal(top.ids, ids.int())
            torch.testing.assert_close(top.logprobs.double(), values, rtol=0, atol=1e-5)
            torch.testing.assert_close(top.entropy.double(), -(expected.exp() * expected).sum(-1), rtol=0, atol=1e-5)
