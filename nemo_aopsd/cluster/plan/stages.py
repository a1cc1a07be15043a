"""The cost model: what each stage of a step does, as terms of the constants.

A stage's seconds are a **sum** of terms: work in seconds at the data sheet's rate over an efficiency, and counts times
a wait. A roofline would take the larger of computing and reading; the sum takes neither for hidden behind the other,
and is linear, so that efficiencies can be fitted by least squares. Formulas in words: docs/scaling.md.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import ceil

from nemo_aopsd.cluster.doctor import memory
from nemo_aopsd.cluster.doctor.memory import FP32, Layout
from nemo_aopsd.cluster.doctor.model_size import ModelSize
from nemo_aopsd.cluster.plan.constants import GPU
from nemo_aopsd.cluster.plan.work import forward_flops, weight_bytes_read
from nemo_aopsd.cluster.plan.workload import Workload

STAGES = ("refit", "rollout", "judge", "student", "teacher", "probes", "update")
Terms = dict[str, float]  # constant -> seconds at the data sheet's rate, or a count
BLOCK = 16  # tokens of a block of vLLM's cache; a probe reads half of one again
MOST_ROWS = 1024  # decoded at once by one engine


@dataclass(frozen=True)
class Setup:
    """Model, machine and how the one lies on the other."""

    size: ModelSize
    gpu: GPU
    layout: Layout
    num_bytes: int  # of a weight, an activation and a cached number
    is_local: bool
    rows_at_once: int  # that one engine decodes together
    score_tokens: int  # of a micro-batch of the scoring pass; the update's is the layout's
    replays_graphs: bool = False  # the local engine's decoding, on a GPU

    @property
    def engines(self) -> int:
        return max(self.layout.gpus // self.layout.sampler_tp, 1)

    @property
    def model_copies(self) -> int:
        """Data-parallel ones of the trainer."""
        return max(self.layout.gpus // (self.layout.tp * self.layout.pp * self.layout.cp), 1)

    @property
    def peak(self) -> float:
        return self.gpu.fp8 if self.layout.fp8 and self.gpu.fp8 else self.gpu.bf16

    def compute(self, name: str) -> str:
        return "fp8_compute" if self.layout.fp8 else f"{name}_compute"

    def wire(self, ranks: int) -> tuple[str, float]:
        """Constant and rate of what connects neighbouring ranks: within a node its own link, else the network."""
        if ranks <= self.layout.gpus_per_node:
            return "link", self.gpu.link
        return "network", self.gpu.network


def step_terms(setup: Setup, work: Workload) -> dict[str, Terms]:
    """Terms of each stage of one step; a stage that does not happen is absent."""
    found: dict[str, Terms] = {}
    rate = work.on_policy_rate
    if rate and not setup.is_local:
        found["refit"] = times(rate, refit(setup))
    if rate:
        found["rollout"] = times(rate, answer(setup, work.rows, work.question, work.response, work.longest))
    if work.judge_rate:
        found["judge"] = times(work.judge_rate, judge(setup, work, work.rows))
    turn = _scoring_turn(setup)  # of whichever scores first
    if work.scores_student:
        found["student"] = add(turn, score(setup, work.rows, work.question + work.response))
        turn = {}
    teacher = add(_swap_reference(setup), score(setup, work.rows, work.teacher_prompt + work.response))
    if work.scores_teacher:
        found["teacher"] = add(turn, teacher)
    if work.probes:
        found["probes"] = probe(setup, work)
    found["update"] = update(setup, work.rows, work.question + work.response)
    if work.teaches_in_update:
        found["update"] = add(found["update"], teacher)
    return found


def refit(setup: Setup) -> Terms:
    """Each GPU gathers the whole model, tensor by tensor, and keeps its part: as long on any number of GPUs."""
    return {"refit": setup.num_bytes * setup.size.total / setup.gpu.link, "turn": 1}


def read(setup: Setup, rows: float, tokens: float) -> Terms:
    """The sampler reads `rows` prompts of `tokens`."""
    here = ceil(rows / setup.engines)
    flops = forward_flops(setup.size, here * tokens, tokens / 2, here) / setup.layout.sampler_tp
    return {"sampler_compute": flops / setup.gpu.bf16, "sampler_request": here}


def decode(setup: Setup, rows: float, context: float, mean: float, longest: float) -> Terms:
    """One engine's share of `rows` goes on by `mean` tokens behind `context`; as many steps as the longest needs."""
    size, layout = setup.size, setup.layout
    here = ceil(rows / setup.engines)
    waves = ceil(here / setup.rows_at_once)
    steps = waves * longest
    running = here * mean / steps if steps else 0.0
    tokens, attended = here * mean, context + mean / 2
    weights = steps * weight_bytes_read(size, running, setup.num_bytes) / layout.sampler_tp
    heads = max(size.key_heads / layout.sampler_tp, 1) / size.key_heads
    cache = tokens * attended * size.kv_bytes(setup.num_bytes) * heads
    flops = forward_flops(size, tokens, attended, tokens) / layout.sampler_tp
    terms = {
        "sampler_bandwidth": (weights + cache) / setup.gpu.bandwidth,
        "sampler_compute": flops / setup.gpu.bf16,
        "sampler_step": steps,
    }
    if setup.is_local:
        terms["graph_layer" if setup.replays_graphs else "layer"] = steps * len(size.layers)
    if layout.sampler_tp > 1:
        wire, _ = setup.wire(layout.sampler_tp)
        terms["sampler_sync" if wire == "link" else "sampler_sync_network"] = 2 * len(size.layers) * steps
    return terms


def answer(setup: Setup, rows: float, prompt: float, mean: float, longest: float) -> Terms:
    """Prompts are read, then answered."""
    return add(read(setup, rows, prompt), decode(setup, rows, prompt, mean, longest))


def judge(setup: Setup, work: Workload, rows: float) -> Terms:
    """A verdict on each of `rows` responses."""
    verdicts = answer(setup, rows, work.judge_prompt, work.judge_answer, work.judge_answer)
    return add(verdicts, _swap_bank(setup)) if work.teacher_judges else verdicts


def score(setup: Setup, rows: float, tokens: float) -> Terms:
    """The trainer's log-probs of whole rows."""
    return _trainer_pass(setup, rows, tokens, 1, 1, setup.compute("score"), setup.score_tokens)


def update(setup: Setup, rows: float, tokens: float) -> Terms:
    """Forward, backward (twice a forward) and, with recomputation, a second forward; gradients; Adam."""
    again = 1 if setup.layout.recompute else 0
    done = _trainer_pass(setup, rows, tokens, 3 + again, 2 + again, setup.compute("update"), setup.layout.pack_tokens)
    return add(done, _exchange_gradients(setup), optimizer(setup))


def probe(setup: Setup, work: Workload) -> Terms:
    """The teacher goes on from its cached rows, the student reads what it wrote behind its own (eq:continuation-nll).

    vLLM has the teacher's prefixes to read, and the student's again if it slept while the trainer scored; the local
    engine keeps both.
    """
    length, number = work.probe_length, work.probes
    middle = work.response / 2
    here = ceil(number / setup.engines)
    tokens = BLOCK / 2 + length
    attended = work.question + middle
    scored = {
        "sampler_compute": here * forward_flops(setup.size, tokens, attended, length)
        / (setup.layout.sampler_tp * setup.gpu.bf16),
        "sampler_bandwidth": here * attended * setup.size.kv_bytes(setup.num_bytes)
        / (setup.layout.sampler_tp * setup.gpu.bandwidth),
        "sampler_request": 2 * here,
    }  # fmt: skip
    eager = replace(setup, replays_graphs=False)  # branches of other shapes each time
    continued = decode(eager, number, work.teacher_prompt + middle, length, length)
    if setup.is_local:
        return add(continued, scored, {"layer": len(setup.size.layers)})
    found = add(_swap_bank(setup), read(setup, work.rows, work.teacher_prompt + work.response), continued, scored)
    if setup.layout.keeps_cache:
        return found
    awake = {"host": _sampler_bytes(setup) / setup.gpu.host, "turn": 1}
    return add(found, awake, read(setup, work.rows, work.question + work.response))


def _trainer_pass(
    setup: Setup, rows: float, tokens: float, forwards: int, exchanges: int, constant: str, pack: int
) -> Terms:
    """Rows in packs of `pack` tokens; `forwards` in units of one forward's FLOPs, `exchanges` of its messages."""
    size, layout = setup.size, setup.layout
    mine = ceil(rows / setup.model_copies) * tokens  # of one copy of the model: the fullest one
    packs = max(ceil(mine / pack), 1)
    waiting = (packs + layout.pp - 1) / packs  # pipeline stages fill and drain
    split = layout.tp * layout.pp * layout.cp
    flops = forwards * forward_flops(size, mine, tokens / 2, mine) * waiting / split
    layers = len(size.layers) / layout.pp
    terms = {
        constant: flops / setup.peak,
        "layer": exchanges * packs * waiting * layers,
    }
    sent = exchanges * mine / layout.cp * waiting * layers * setup.num_bytes * size.hidden  # one layer's stream, often
    if layout.tp > 1:  # two all-gathers and two reduce-scatters a layer and forward
        wire, rate = setup.wire(layout.tp)
        terms = add(terms, {wire: 4 * sent * (layout.tp - 1) / layout.tp / rate})
    if size.is_moe and layout.ep > 1:  # tokens to their experts and back
        wire, rate = setup.wire(layout.ep * layout.etp)
        moved = 2 * sent / layout.tp * size.experts_per_token * (layout.ep - 1) / layout.ep
        terms = add(terms, {wire: moved / rate})
    return terms


def _exchange_gradients(setup: Setup) -> Terms:
    """Reduce-scatter of gradients, all-gather of bfloat16 weights, among the copies of each shard."""
    layout = setup.layout
    shared, experts = memory.shard(setup.size, layout)
    each = (FP32 if layout.fp32_gradients else setup.num_bytes) + setup.num_bytes
    terms: Terms = {}
    for parameters, copies in ((shared, layout.copies), (experts, layout.expert_copies)):
        if parameters and copies > 1:
            wire, rate = setup.wire(layout.gpus)
            terms = add(terms, {wire: each * parameters * (copies - 1) / copies / rate})
    return terms


def optimizer(setup: Setup) -> Terms:
    """Adam reads and writes 12 bytes a parameter and reads the gradient; on a cluster its state waits in the host."""
    layout = setup.layout
    shared, experts = memory.shard(setup.size, layout)
    mine = shared / layout.copies + experts / layout.expert_copies
    terms: Terms = {"trainer_bandwidth": 28 * mine / setup.gpu.bandwidth}
    if setup.is_local:
        return terms
    return add(terms, {"host": 2 * 12 * mine / setup.gpu.host, "turn": 1})


def _scoring_turn(setup: Setup) -> Terms:
    """vLLM's weights go to the host, now or before the update; the trainer's come back."""
    if setup.is_local:
        return {}
    moved = setup.num_bytes * sum(memory.shard(setup.size, setup.layout)) + _sampler_bytes(setup)
    return {"host": moved / setup.gpu.host, "turn": 1}


def _swap_reference(setup: Setup) -> Terms:
    """The student goes aside, the reference comes, the student comes back."""
    if setup.is_local:
        return {}
    return {"host": 3 * setup.num_bytes * sum(memory.shard(setup.size, setup.layout)) / setup.gpu.host}


def _swap_bank(setup: Setup) -> Terms:
    """The same in vLLM, between two uses: the student goes aside, the teacher comes, the student comes back."""
    return {} if setup.is_local else {"host": 3 * _sampler_bytes(setup) / setup.gpu.host}


def _sampler_bytes(setup: Setup) -> float:
    """Of the weights on one GPU of vLLM's."""
    return setup.num_bytes * setup.size.total / setup.layout.sampler_tp


def times(factor: float, terms: Terms) -> Terms:
    return {name: factor * amount for name, amount in terms.items()}


def add(*terms: Terms) -> Terms:
    total: Counter[str] = Counter()
    for each in terms:
        total.update(each)
    return dict(total)
