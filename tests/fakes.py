"""An engine whose every number can be computed by hand: two bigram tables over characters."""

import copy
import hashlib
import json
import random
import re
import string
from dataclasses import replace
from pathlib import Path

import networkx as nx
import torch

from nemo_aopsd.config.schema import AOPSDConfig, Config
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.types import Branch, Generation, TopK

ALPHABET = "\0" + string.printable  # id 0 ends a response
END = 0


class CharTokenizer:
    """One character, one token."""

    end_ids = frozenset({END})
    end_id = END

    def render(self, messages, thinking):
        return self.encode("".join(message["content"] for message in messages) + "\n")

    def render_all(self, conversations, thinking):
        return [self.render(messages, thinking) for messages in conversations]

    def encode(self, text):
        return [ALPHABET.index(char) for char in text]

    def decode(self, tokens):
        return "".join(ALPHABET[token] for token in tokens if token != END)

    def pieces(self, tokens):
        return [ALPHABET[token] if token != END else "<end>" for token in tokens]


class BigramModel:
    """p(next | last) from a table of logits `[V, V]`. Prompts that quote a judge's task get a scripted verdict."""

    def __init__(self, logits: torch.Tensor):
        self.logits = torch.nn.Parameter(logits.clone())

    def table(self) -> torch.Tensor:
        return self.logits.log_softmax(-1)

    def generate(self, prompts, sampling, seed):
        probs = self.table().exp().tolist()
        found = [
            self._generate(prompt, sampling, random.Random(f"{seed}/{row}"), probs)
            for row, prompt in enumerate(prompts)
        ]
        with torch.no_grad():
            said = [self.score(prompt, row.tokens) for prompt, row in zip(prompts, found, strict=True)]
        return [replace(row, logprobs=values) for row, values in zip(found, said, strict=True)]

    def _generate(self, prompt, sampling, rng, probs):
        text = CharTokenizer().decode(prompt)
        if text.startswith("You check"):
            ids = re.findall(r"^\[([a-z])\] x", text, re.MULTILINE)
            verdict = json.dumps([node for node in ids if rng.random() < 0.6])
            return Generation([*CharTokenizer().encode(verdict), END], True)
        tokens, last = [], prompt[-1]
        while len(tokens) < sampling.max_new_tokens:
            last = rng.choices(range(len(probs)), probs[last])[0]
            tokens.append(last)
            if last == END:
                return Generation(tokens, True)
        return Generation(tokens, False)

    def logprobs(self, prompts, responses):
        with torch.no_grad():
            return [self.score(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]

    def top_logprobs(self, prompts, responses, k):
        with torch.no_grad():
            return [self.top(prompt, response, k) for prompt, response in zip(prompts, responses, strict=True)]

    def top(self, prompt, response, k):
        table = self.distributions(prompt, response).float()
        values, ids = table.topk(k, -1)
        return TopK(ids.int(), values, -(table.exp() * table).sum(-1))

    def distributions(self, prompt, response):
        return self.table()[[prompt[-1], *response][:-1]]

    def score(self, prompt, response):
        row = [prompt[-1], *response]
        return self.table()[row[:-1], response].float()

    def continue_greedily(self, prompts, responses, branches, length):
        likeliest = self.table().argmax(-1).tolist()

        def extend(prompt, response, branch):
            tokens = list(branch.tokens)
            while len(tokens) < length and (not tokens or tokens[-1] != END):
                last = [*prompt, *response[: branch.position], *tokens][-1]
                tokens.append(likeliest[last])
            return Branch(branch.position, tokens)

        rows = zip(prompts, responses, branches, strict=True)
        return [[extend(prompt, response, branch) for branch in row] for prompt, response, row in rows]

    def branch_logprobs(self, prompts, responses, branches):
        rows = zip(prompts, responses, branches, strict=True)
        return [
            [self.logprobs([[*prompt, *response[: b.position]]], [b.tokens])[0] for b in row]
            for prompt, response, row in rows
        ]

    def next_logprobs(self, prompts, responses, branches, choices):
        rows = zip(prompts, responses, branches, strict=True)
        return [
            [self.table()[[*prompt, *response[: b.position], *b.tokens][-1], choices].detach() for b in row]
            for prompt, response, row in rows
        ]


class FakeEngine:
    """SGD on the student's table; the teacher is a second, frozen table."""

    def __init__(self, student: torch.Tensor, teacher: torch.Tensor, learning_rate: float = 1.0):
        self.tokenizer = CharTokenizer()
        self.student, self.teacher = BigramModel(student), BigramModel(teacher)
        self.judge = None
        self.learning_rate = learning_rate
        self.trained: list = []
        self.logged: list = []

    def train(self, rows, objective):
        self.trained.append(rows)
        num_tokens = sum(row.mask.sum().item() for row in rows)
        num_rows = sum(row.mask.any().item() for row in rows)
        if not num_tokens:
            return {"train/loss": 0.0, "train/grad_norm": 0.0, "train/skipped": 1.0}
        self.student.logits.grad = None
        total = {}
        for row in rows:
            names = ("old_logprobs", "teacher_logprobs", "weights", "advantages", "mask")
            columns = {name: None if (value := getattr(row, name)) is None else value[None] for name in names}
            logprobs = self.student.score(row.prompt, row.response)[None]
            columns["divergence"] = self.divergence(row, objective)
            columns["entropy"] = None if row.top_k is None else row.top_k.entropy[None]
            loss, metrics = objective(logprobs, **columns, num_tokens=num_tokens, num_rows=num_rows)
            loss.backward()
            total = {key: total.get(key, 0.0) + value.item() for key, value in metrics.items()}
        grad = self.student.logits.grad
        with torch.no_grad():
            self.student.logits -= self.learning_rate * grad
        return total | {"train/grad_norm": grad.norm().item()}

    def divergence(self, row, objective):
        signal = objective.signal
        if not (signal.full or signal.top_k):
            return None
        student = self.student.distributions(row.prompt, row.response)
        teacher = row.top_k
        if signal.full:
            teacher = self.teacher.distributions(row.teacher_prompt, row.response).detach()
        return objective.divergence(student, teacher)[None]

    def log_metrics(self, metrics, step):
        self.logged.append((step, metrics))

    def forget_metrics_after(self, step):
        self.forgotten_after = step

    def teacher_checksum(self):
        return hashlib.sha256(self.teacher.logits.detach().numpy().tobytes()).hexdigest()

    def save(self, directory: Path):
        torch.save(self.student.logits.detach(), directory / "student.pt")

    def load(self, directory: Path):
        self.student = BigramModel(torch.load(directory / "student.pt"))


def random_table(seed: int, end_boost: float = 4.0) -> torch.Tensor:
    logits = torch.randn(len(ALPHABET), len(ALPHABET), generator=torch.Generator().manual_seed(seed))
    logits[:, END] += end_boost
    return logits.double()


def make_engine(seed: int = 0) -> FakeEngine:
    return FakeEngine(random_table(seed), random_table(seed + 1))


def make_problem(index: int, statement_tail: str = "") -> Problem:
    graph = nx.DiGraph()
    graph.add_nodes_from((node, {"statement": f"x{node} = {index}{statement_tail}"}) for node in "abcd")
    graph.add_edges_from([("a", "c"), ("b", "c"), ("c", "d")])
    return Problem(
        id=f"p{index:03d}",
        problem=f"What is {index} + 1?",
        answer=str(index + 1),
        where=f"problems.jsonl:{index + 1}",
        solution=f"Add one to {index}.",
        plan=("add one",),
        subproblems=("What is one more?",),
        dag=graph,
    )


def make_config(run: Path, aopsd: AOPSDConfig | None = None, **policy) -> Config:
    policy = {
        "generation": {"max_new_tokens": 12, "temperature": 1.0, "top_p": 1.0, "top_k": None},
        "max_total_sequence_length": 4096,
    } | policy
    blocks = {
        "policy": policy,
        "data": {"train": {"data_path": "problems.jsonl"}},
        "logger": {"log_dir": str(run)},
        "checkpointing": {
            "enabled": True,
            "checkpoint_dir": str(run / "checkpoints"),
            "save_period": 1,
            "keep_top_k": 2,
        },
    }
    return Config(aopsd=aopsd or AOPSDConfig(), **copy.deepcopy(blocks), raw=copy.deepcopy(blocks))
