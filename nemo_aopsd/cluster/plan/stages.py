"""Seconds of each stage of a step: a dense model in bfloat16, tensor and data parallel within one node.

A stage is a sum of work at a share of the data sheet's rate, and of waits. A roofline would take the larger of
computing and reading; the sum takes neither for hidden behind the other. Formulas in words: docs/scaling.md.
"""

from dataclasses import dataclass
from math import ceil

from nemo_aopsd.cluster.doctor import memory
from nemo_aopsd.cluster.doctor.memory import BF16, Layout
from nemo_aopsd.cluster.doctor.model import ModelSize
from nemo_aopsd.cluster.plan.rates import GPU, Rates
from nemo_aopsd.cluster.plan.workload import Workload

MOST_ROWS = 1024  # decoded at once by one engine
BLOCK = 16  # tokens of a block of vLLM's cache; a probe reads half of one again


@dataclass(frozen=True)
class Setup:
    """Model, machine and how the one lies on the other."""

    size: ModelSize
    gpu: GPU
    layout: Layout
    rates: Rates
    rows_at_once: int  # that one engine decodes together
    score_tokens: int  # of a micro-batch of the scoring pass; the update's is the layout's

    @property
    def sampler_bytes(self) -> float:
        """Of the weights on one GPU of vLLM's."""
        return memory.sampler_weights(self.size, self.layout)

    @property
    def student_aside(self) -> float:
        """Seconds until vLLM's student is kept aside, or back: nothing where it waits on the GPU."""
        on_gpu = memory.student_waits_on_gpu(self.size, self.layout, self.gpu.memory)
        return 0.0 if on_gpu else self.copied(self.sampler_bytes)

    @property
    def trainer_bytes(self) -> float:
        return BF16 * sum(memory.shard(self.size, self.layout))

    @property
    def linear(self) -> int:
        """Parameters in matrix products of one token, embedding and head apart."""
        return sum(layer.attention + layer.mlp for layer in self.size.layers)

    @property
    def head(self) -> int:
        return self.size.hidden * self.size.vocabulary

    def flops(self, tokens: float, context: float, logits: float) -> float:
        """Of one forward over `tokens`, each attending to `context` others; `logits` go through the head."""
        attention = 4 * len(self.size.layers) * self.size.query_width * context
        return tokens * (2 * self.linear + attention) + 2 * logits * self.head

    def copied(self, num_bytes: float) -> float:
        """Seconds of a copy between GPU and host."""
        return num_bytes / (self.rates.host * self.gpu.host)


def step_seconds(setup: Setup, work: Workload) -> dict[str, float]:
    """By stage; a stage that does not happen is absent. Without Adam's step and the exchange of gradients."""
    found = {
        "refit": refit(setup),
        "rollout": answer(setup, work.rows, work.question, work.response, work.longest),
    }
    if work.is_judged:
        found["judge"] = judge(setup, work, work.rows)
    found |= _scored_by_trainer(setup, work) if work.scoring == "trainer" else _scored_by_sampler(setup, work)
    found["update"] = update(setup, work.rows, work.question + work.response)
    if work.scoring != "trainer":  # the trainer's weights come for it, and vLLM's are not kept
        found["update"] += setup.copied(setup.trainer_bytes)
    return found


def _scored_by_trainer(setup: Setup, work: Workload) -> dict[str, float]:
    found = {}
    # vLLM's weights go to the host and the trainer's come back, for the first stage that scores.
    turn = setup.copied(setup.trainer_bytes + setup.sampler_bytes) + setup.rates.turn
    if work.scores_student:
        found["student"] = turn + score(setup, work.rows, work.question + work.response)
        turn = 0.0
    swap = setup.copied(3 * setup.trainer_bytes)  # student aside, reference in, student back
    found["teacher"] = turn + swap + score(setup, work.rows, work.teacher_prompt + work.response)
    if work.probes:
        found["probes"] = _swap_bank(setup) + _prefixes(setup, work) + probe(setup, work)
    return found


def _scored_by_sampler(setup: Setup, work: Workload) -> dict[str, float]:
    """In vLLM's turn; its cache then has the rows that probes go on from."""
    found, logits = {}, work.response
    if work.scores_student:
        found["student"] = read(setup, work.rows, work.question + work.response, logits)
    shown = setup.student_aside + setup.copied(setup.sampler_bytes)
    found["teacher"] = shown + read(setup, work.rows, work.teacher_prompt + work.response, logits)
    if work.probes:
        found["probes"] = setup.student_aside + probe(setup, work)
    return found


def first_seconds(setup: Setup, work: Workload) -> float:
    """K attempts at each problem before the first epoch, and their verdicts; a step's problems at a time."""
    if not work.initial_attempts:
        return 0.0
    rows = work.prompts * work.initial_attempts
    attempts = answer(setup, rows, work.question, work.response, work.longest)
    return refit(setup) + work.steps * (attempts + judge(setup, work, rows))


def refit(setup: Setup) -> float:
    """Each GPU gathers the whole model, tensor by tensor, and keeps its part: as long on any number of GPUs."""
    return BF16 * setup.size.total / (setup.rates.refit * setup.gpu.link) + setup.rates.turn


def read(setup: Setup, rows: float, tokens: float, logits: float = 1) -> float:
    """The sampler reads `rows` prompts of `tokens`, of which `logits` go through the head."""
    here = ceil(rows / setup.layout.engines)
    flops = setup.flops(here * tokens, tokens / 2, here * logits) / setup.layout.sampler_tp
    return flops / (setup.rates.sampler_compute * setup.gpu.flops) + here * setup.rates.sampler_request


def decode(setup: Setup, rows: float, context: float, mean: float, longest: float) -> float:
    """One engine's share of `rows` goes on by `mean` tokens behind `context`; as many steps as the longest needs."""
    size, layout, rates = setup.size, setup.layout, setup.rates
    here, attended = ceil(rows / layout.engines), context + mean / 2
    tokens, steps = here * mean, ceil(here / setup.rows_at_once) * longest
    weights = steps * BF16 * (setup.linear + setup.head) / layout.sampler_tp
    cache = tokens * attended * memory.cache_bytes(size, layout)
    flops = setup.flops(tokens, attended, tokens) / layout.sampler_tp
    syncs = 2 * len(size.layers) * steps if layout.sampler_tp > 1 else 0
    return (
        (weights + cache) / (rates.sampler_bandwidth * setup.gpu.bandwidth)
        + flops / (rates.sampler_compute * setup.gpu.flops)
        + steps * rates.sampler_step
        + syncs * rates.sampler_sync
    )


def answer(setup: Setup, rows: float, prompt: float, mean: float, longest: float) -> float:
    """Prompts are read, then answered."""
    return read(setup, rows, prompt) + decode(setup, rows, prompt, mean, longest)


def judge(setup: Setup, work: Workload, rows: float) -> float:
    """A verdict on each of `rows` responses."""
    verdicts = answer(setup, rows, work.judge_prompt, work.judge_answer, work.judge_answer)
    return verdicts + (_swap_bank(setup) if work.teacher_judges else 0.0)


def score(setup: Setup, rows: float, tokens: float) -> float:
    """The trainer's log-probs of whole rows."""
    return _trainer_pass(setup, rows, tokens, (1, 1), setup.rates.score_compute, setup.score_tokens)


def update(setup: Setup, rows: float, tokens: float) -> float:
    """Forward, backward (twice a forward) and, with recomputation, a second forward; the way to the next rollout."""
    again, rate, pack = int(setup.layout.recompute), setup.rates.update_compute, setup.layout.pack_tokens
    return _trainer_pass(setup, rows, tokens, (3 + again, 2 + again), rate, pack) + setup.rates.turn


def probe(setup: Setup, work: Workload) -> float:
    """The teacher goes on from cached rows, the student reads what it wrote behind its own (eq:continuation-nll)."""
    layout, rates, length, middle = setup.layout, setup.rates, work.probe_length, work.response / 2
    here, attended = ceil(work.probes / layout.engines), work.question + middle
    flops = here * setup.flops(BLOCK / 2 + length, attended, length) / layout.sampler_tp
    cache = here * attended * setup.size.kv_bytes() / layout.sampler_tp
    requests = 2 * here if work.probe_runner == "requests" else 0
    scored = (
        flops / (rates.sampler_compute * setup.gpu.flops)
        + cache / (rates.sampler_bandwidth * setup.gpu.bandwidth)
        + requests * rates.sampler_request
    )
    return decode(setup, work.probes, work.teacher_prompt + middle, length, length) + scored


def _prefixes(setup: Setup, work: Workload) -> float:
    """Behind a scoring trainer vLLM has the teacher's rows to read, and the student's again if it slept meanwhile."""
    seconds = read(setup, work.rows, work.teacher_prompt + work.response)
    if setup.layout.keeps_cache:
        return seconds
    awake = setup.copied(setup.sampler_bytes) + setup.rates.turn
    return seconds + awake + read(setup, work.rows, work.question + work.response)


def _swap_bank(setup: Setup) -> float:
    """In vLLM the student goes aside, the teacher comes, the student comes back."""
    return 2 * setup.student_aside + setup.copied(setup.sampler_bytes)


def _trainer_pass(setup: Setup, rows: float, tokens: float, passes: tuple[int, int], rate: float, pack: int) -> float:
    """`passes` over the fullest copy's rows, in units of one forward's FLOPs and of its launches and messages."""
    size, layout, (forwards, exchanges) = setup.size, setup.layout, passes
    mine = ceil(rows / layout.copies) * tokens
    flops = forwards * setup.flops(mine, tokens / 2, mine) / layout.tp
    launches = exchanges * max(ceil(mine / pack), 1) * len(size.layers)
    # Tensor parallelism: two all-gathers and two reduce-scatters a layer and forward.
    sent = 4 * exchanges * mine * len(size.layers) * BF16 * size.hidden * (layout.tp - 1) / layout.tp
    messages = sent / (setup.rates.link * setup.gpu.link)
    return flops / (rate * setup.gpu.flops) + launches * setup.rates.layer + messages
