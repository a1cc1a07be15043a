"""Whole training steps of the local engine against a second implementation, written from the paper's equations alone.

The reference has no cache, batch, padding or mask: it reads one row at a time in one plain forward, finds sets by
trying all subsets, and does AdamW and EMA by hand. Random input alone (sampled responses, scripted verdicts) is shared
with the package.
"""

import copy
import itertools
import json
import math
import random

import networkx as nx
import pytest
import torch

from nemo_aopsd.config.nemo_rl_keys import OptimizerKwargs
from nemo_aopsd.config.schema import (
    AOPSDConfig,
    ContextConfig,
    JudgeConfig,
    ObjectiveConfig,
    ProbeConfig,
    TeacherConfig,
)
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engines.local.engine import LocalEngine
from nemo_aopsd.method.objectives.pg import PolicyGradient
from nemo_aopsd.method.step import train_step
from nemo_aopsd.types import Generation
from tests.fakes import ALPHABET, END, CharTokenizer, make_config
from tests.local_models import tiny_model, tiny_settings

TEMPLATES = {
    "student": "{problem}!",
    "teacher_dag": "{problem} DAG\n{context}\n!",
    "teacher_dag_marked": "{problem} DAG with marks\n{context}\n!",
    "judge": "JUDGE {problem}\n{checkpoints}\n{attempt}\n!",
}
OPTIMIZER = OptimizerKwargs(lr=1e-2, weight_decay=0.1, betas=(0.8, 0.9), eps=1e-3)
CLOSE = {"rel": 1e-4, "abs": 1e-5}


class ManyEnds(CharTokenizer):
    """Several end tokens, so that responses and probes of a random model do end."""

    end_ids = frozenset({END, *CharTokenizer().encode("aeiouAEIOU")})


TOKENIZER = ManyEnds()


class Case:
    """A setting, drawn by seed; `teacher`, `context`, `weighting` as in the config."""

    decay = 0.7
    beta = (1.0, 2.5)

    def __init__(self, rng):
        self.k = rng.choice([2, 3, 6])
        self.threshold = rng.choice([0.3, 1.0])
        self.clip = rng.choice([0.5, 10.0])
        self.teacher = rng.choice(["frozen", "ema", "live"])
        self.context = rng.choice(["dag_frontier"] * 5 + ["dag_full", "none"])
        self.weighting = rng.choice(["continuation"] * 6 + ["uniform"])
        self.mark = rng.random() < 0.5
        self.mask_truncated = rng.random() < 0.3
        self.generations = rng.choice([1, 2])
        self.temperature = rng.choice([1.0, 1.6])
        self.row_tokens = rng.choice([600, 600, 90])
        self.max_grad_norm = rng.choice([0.02, 1e6])
        self.micro_batch = rng.choice([1, 3])
        self.prefix_gb = rng.choice([0.0, 1.0])

    def config(self, folder, scoring):
        aopsd = AOPSDConfig(
            prompts=str(folder),
            scoring=scoring,
            num_generations_per_prompt=self.generations,
            mask_truncated=self.mask_truncated,
            weighting=self.weighting,
            objective=ObjectiveConfig(advantage_clip=self.clip),
            context=ContextConfig(kind=self.context, mark_frontier=self.mark, on_overlong="drop"),
            judge=JudgeConfig(max_new_tokens=7),
            probes=ProbeConfig(
                threshold=self.threshold, length=self.k, beta_positive=self.beta[0], beta_negative=self.beta[1]
            ),
        )
        generation = {"max_new_tokens": 7, "temperature": self.temperature}
        return make_config(folder, aopsd, generation=generation, max_total_sequence_length=self.row_tokens)

    def engine(self, model):
        settings = tiny_settings(
            optimizer=OPTIMIZER,
            teacher=TeacherConfig(self.teacher, self.decay),
            max_total_sequence_length=self.row_tokens,
            max_grad_norm=self.max_grad_norm,
            train_micro_batch_size=self.micro_batch,
            prefix_cache_gb=self.prefix_gb,
        )
        return LocalEngine(model, TOKENIZER, settings)


def random_problem(index, rng):
    ids = rng.sample("12345", 5)
    graph = nx.DiGraph()
    graph.add_nodes_from((node, {"statement": f"s{node}={index}"}) for node in ids)
    graph.add_edges_from(pair for pair in itertools.combinations("12345", 2) if rng.random() < 0.35)
    return Problem(id=f"p{index}", problem=f"Q{index}", answer="0", where="", dag=graph)


class ScriptedJudge:
    """Answers the judge's prompts by a script; everything else goes to the model."""

    def __init__(self, model, rng):
        self.generate_for_real, self.rng = model.generate, rng
        self.script = {}  # judge's prompt -> named ids, or None where it says nothing readable

    def generate(self, prompts, sampling, seed):
        if not TOKENIZER.decode(prompts[0]).startswith("JUDGE"):
            return self.generate_for_real(prompts, sampling, seed)
        answers = []
        for prompt in map(TOKENIZER.decode, prompts):
            named = [node for node in "12345" if self.rng.random() < 0.7]
            named = self.script.setdefault(prompt, None if self.rng.random() < 0.2 else named)
            text = "no idea" if named is None else f"I find {json.dumps(named)}"
            answers.append(Generation([*TOKENIZER.encode(text), END], True))
        return answers


# The reference. Index convention: entry t of a list belongs to token t of the response.


def fill(name, **gaps):
    text = TEMPLATES[name]
    for gap, value in gaps.items():
        text = text.replace("{" + gap + "}", value)
    return [ALPHABET.index(char) for char in text + "\n"]


def reached_by_trying_all(graph, named):
    """Largest subset of `named` that holds the parents of each of its members."""
    subsets = (set(some) for size in range(len(named) + 1) for some in itertools.combinations(sorted(named), size))
    closed = [some for some in subsets if all(u in some for u, v in graph.edges if v in some)]
    return max(closed, key=len)


def written(graph, shown, mark):
    """The first line in file order whose shown parents are already written, again and again."""
    lines, done = [], []
    while len(done) < len(shown):
        parents = {v: [u for u in graph if u in shown and (u, v) in graph.edges] for v in graph}
        node = next(v for v in graph if v in shown and v not in done and set(parents[v]) <= set(done))
        requires = f" (requires: {', '.join(parents[node])})" if parents[node] else ""
        lines.append(f"[{node}] {graph.nodes[node]['statement']}{requires}{mark(node)}")
        done.append(node)
    return "\n".join(lines)


def teacher_prompt(problem, reached, case):
    graph = problem.dag
    if case.context == "none":
        return fill("student", problem=problem.problem)
    if case.context == "dag_full":
        return fill("teacher_dag", problem=problem.problem, context=written(graph, set(graph), lambda v: ""))
    frontier = {v for v in graph if v not in reached and all(u in reached for u, w in graph.edges if w == v)}

    def mark(node):
        return (" reached" if node in reached else " next") if case.mark else ""

    wording = "teacher_dag_marked" if case.mark else "teacher_dag"
    return fill(wording, problem=problem.problem, context=written(graph, reached | frontier, mark))


def next_logprobs(model, tokens):
    """Log-probs over the vocabulary of what follows `tokens`, at temperature 1."""
    return model(input_ids=torch.tensor([tokens])).logits[0, -1].log_softmax(-1)


def logprobs(model, before, tokens):
    """Log-prob of each of `tokens` after all that stands before it."""
    predicted = model(input_ids=torch.tensor([before + tokens])).logits[0].log_softmax(-1)
    return [predicted[len(before) + t - 1, token] for t, token in enumerate(tokens)]


def probe(student, teacher, asked, told, response, t, gap, case):
    """(anchor, suffix, L_t, w_t) at position t; `asked` and `told` are the prompts of student and teacher."""
    prefix = response[:t]
    anchor = response[t] if gap > 0 else int(next_logprobs(teacher, told + prefix).argmax())
    suffix = []
    while len(suffix) < case.k - 1 and [anchor, *suffix][-1] not in TOKENIZER.end_ids:
        suffix.append(int(next_logprobs(teacher, [*told, *prefix, anchor, *suffix]).argmax()))
    if not suffix:
        return anchor, suffix, None, 1.0
    nll = -sum(logprobs(student, [*asked, *prefix, anchor], suffix)).item() / len(suffix)
    beta = case.beta[0] if gap > 0 else case.beta[1]
    return anchor, suffix, nll, nll / beta * math.exp(1 - nll / beta)


class Reference:
    """Student, teacher and the optimizer's two moments."""

    def __init__(self, model, case):
        self.case = case
        self.student = copy.deepcopy(model)
        self.teacher = self.student if case.teacher == "live" else copy.deepcopy(model)
        self.moments = {name: (0.0, 0.0) for name, _ in self.student.named_parameters()}
        self.updates = 0

    def weigh(self, asked, told, response):
        """Gaps, probes by position, and the weight of each token."""
        student, teacher = self.student, self.teacher
        with torch.no_grad():
            p = [value.item() for value in logprobs(student, asked, response)]
            q = [value.item() for value in logprobs(teacher, told, response)]
            gaps = [after - before for before, after in zip(p, q, strict=True)]
            probes = {
                t: probe(student, teacher, asked, told, response, t, gap, self.case)
                for t, gap in enumerate(gaps)
                if abs(gap) >= self.case.threshold and self.case.weighting == "continuation"
            }
        weights = [probes[t][-1] if t in probes else 1.0 for t in range(len(response))]
        return p, q, gaps, probes, weights

    def update(self, rows):
        """One step on rows of (prompt, response, p, q, weights); returns loss, gradient norm, share of clipped."""
        num_tokens = sum(len(response) for _, response, *_ in rows)
        if not num_tokens:
            return 0.0, 0.0, 0.0
        loss, num_clipped = 0.0, 0
        for asked, response, old, q, weights in rows:
            for t, current in enumerate(logprobs(self.student, asked, response)):
                weighted = weights[t] * (q[t] - current.item())
                advantage = min(max(weighted, -self.case.clip), self.case.clip)
                num_clipped += abs(weighted) > self.case.clip
                ratio = (current - old[t]).exp()
                unclipped, clipped = ratio * advantage, ratio.clamp(0.8, 1.2) * advantage
                loss = loss - (unclipped if unclipped.item() <= clipped.item() else clipped) / num_tokens
        params = dict(self.student.named_parameters())
        gradients = torch.autograd.grad(loss, list(params.values()))
        norm = math.sqrt(sum(gradient.pow(2).sum().item() for gradient in gradients))
        shrink = self.case.max_grad_norm / max(norm, self.case.max_grad_norm)
        self.updates += 1
        with torch.no_grad():
            for (name, param), gradient in zip(params.items(), gradients, strict=True):
                self.adamw(name, param, gradient * shrink)
            if self.case.teacher == "ema":
                for name, weight in self.teacher.named_parameters():
                    weight.copy_(self.case.decay * weight + (1 - self.case.decay) * params[name])
        return loss.item(), norm, num_clipped / num_tokens

    def adamw(self, name, param, gradient):
        (first, second), (beta1, beta2) = self.moments[name], OPTIMIZER.betas
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        self.moments[name] = first, second
        first, second = first / (1 - beta1**self.updates), second / (1 - beta2**self.updates)
        param.mul_(1 - OPTIMIZER.lr * OPTIMIZER.weight_decay)
        param.sub_(OPTIMIZER.lr * first / (second.sqrt() + OPTIMIZER.eps))


def check_rollout(draft, rollout, reference, judge, case):
    """Compare all that is known of a rollout before the update; returns its row for the update, if it has one."""
    problem, response = draft.problem, draft.output.tokens
    asked = fill("student", problem=problem.problem)
    assert draft.student_prompt == asked
    assert draft.output.finished == (response[-1] in TOKENIZER.end_ids)

    checkpoints = "\n".join(f"[{node}] {data['statement']}" for node, data in problem.dag.nodes(data=True))
    shown = fill("judge", problem=problem.problem, checkpoints=checkpoints, attempt=TOKENIZER.decode(response))
    named = judge.script[TOKENIZER.decode(shown)]
    reached = reached_by_trying_all(problem.dag, named or [])
    assert draft.reached == reached
    assert draft.progress == (None if named is None else len(reached) / 5)

    told = teacher_prompt(problem, reached, case)
    assert draft.teacher_prompt == told
    assert draft.fits != (len(told) + len(response) + case.k > case.row_tokens)
    assert (rollout is None) == (not draft.fits)
    if rollout is None:
        return None

    p, q, gaps, probes, weights = reference.weigh(asked, told, response)
    assert rollout.student_logprobs.tolist() == pytest.approx(p, **CLOSE)
    assert rollout.teacher_logprobs.tolist() == pytest.approx(q, **CLOSE)
    assert rollout.gap.tolist() == pytest.approx(gaps, **CLOSE)
    assert rollout.weights.tolist() == pytest.approx(weights, **CLOSE)
    assert [found.position for found in rollout.probes] == list(probes)
    for found in rollout.probes:
        anchor, suffix, nll, weight = probes[found.position]
        assert (found.anchor, found.suffix) == (anchor, suffix)
        assert (found.nll is None) == (nll is None)
        assert found.nll is None or found.nll == pytest.approx(nll, **CLOSE)
        assert found.weight == pytest.approx(weight, **CLOSE)
    return None if case.mask_truncated and not draft.output.finished else (asked, response, p, q, weights)


@pytest.fixture
def prompts(tmp_path):
    for name, text in TEMPLATES.items():
        (tmp_path / f"{name}.txt").write_text(text)
    return tmp_path


@pytest.mark.parametrize("scoring", ["trainer", "sampler"])
@pytest.mark.parametrize("seed", range(10))
def test_two_steps_equal_a_plain_reference(seed, scoring, prompts, monkeypatch):
    rng = random.Random(seed)
    case = Case(rng)
    # Float64, so that no comparison hangs on rounding.
    model = tiny_model("qwen3", seed, torch.float64, num_words=len(ALPHABET), end=END)
    reference, engine = Reference(model, case), case.engine(model)
    if scoring == "sampler":
        monkeypatch.setattr(engine.student, "logprobs", None)  # sampling has said them
    judge = ScriptedJudge(engine.student, rng)
    monkeypatch.setattr(engine.student, "generate", judge.generate)
    config = case.config(prompts, scoring)

    for step in range(2):
        problems = [random_problem(3 * step + index, rng) for index in range(3)]
        objective = PolicyGradient(config.aopsd.objective)
        result = train_step(problems, engine, objective, config, donors={}, seed=100 * seed + step)
        each = [problem.id for problem in problems for _ in range(case.generations)]
        assert [draft.problem.id for draft in result.drafts] == each
        rows = [check_rollout(*pair, reference, judge, case) for pair in result.pairs()]
        loss, norm, clipped = reference.update([row for row in rows if row])
        assert result.train_metrics["train/loss"] == pytest.approx(loss, **CLOSE)
        assert result.train_metrics["train/grad_norm"] == pytest.approx(norm, **CLOSE)
        assert result.train_metrics["train/frac_clipped"] == pytest.approx(clipped)
        for ours, theirs in ((reference.student, engine.student), (reference.teacher, engine.teacher)):
            found = dict(theirs.network.causal_lm.named_parameters())
            for name, expected in ours.named_parameters():
                torch.testing.assert_close(found[name], expected, atol=1e-5, rtol=1e-4, msg=f"step {step}: {name}")
