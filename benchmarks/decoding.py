"""Seconds of the local engine's stages on a GPU, with and without CUDA graphs and cuDNN's attention.

    python -m benchmarks.decoding [--rows 128] [--tokens 208] [--probes 8] [--rounds 3] [--model DIRECTORY]

Random weights of SmolLM2-135M's shape in bfloat16 unless a model is given. The ways take turns within a round; a round
has prompts of its own length, as a training step has, so that what a library plans anew for every shape is counted.
Prints a line per way and round, with what the process by then holds of the host's memory, then medians and the range.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from nemo_aopsd.config.nemo_rl_keys import OptimizerKwargs
from nemo_aopsd.config.schema import TeacherConfig
from nemo_aopsd.engines.local.model import LocalModel
from nemo_aopsd.engines.local.settings import Settings
from nemo_aopsd.types import Branch, Sampling, Tokens

WAYS = [(enforce_eager, cudnn) for enforce_eager in (False, True) for cudnn in (False, True)]
STAGES = ("decoding", "log-probs", "continuations", "scores")
LENGTH = 8  # tokens of a probe
PROMPT = 300
SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=208, help="of a response")
    parser.add_argument("--probes", type=int, default=8, help="of a response")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path)
    arguments = parser.parse_args()
    ways = WAYS if torch.cuda.is_available() else [(True, False)]
    causal_lm = load(arguments.model)
    models = {way: local_model(causal_lm, way[0]) for way in ways}
    for way in ways:
        time_stages(models[way], way, prompts(2, 0), 4, 1)  # libraries load and warm up
    seconds: dict[tuple[bool, bool], list[list[float]]] = {way: [] for way in ways}
    for number in range(arguments.rounds):
        for way in ways:
            taken = time_stages(models[way], way, prompts(arguments.rows, number), arguments.tokens, arguments.probes)
            seconds[way].append(taken)
            listed = ", ".join(f"{value:.2f}" for value in taken)
            print(f"round {number}: {name(way)}: {listed} s; host {host_memory():.2f} GB", flush=True)
    print(f"\n{device_name()}, torch {torch.__version__}, {arguments}\n")
    print(f"| way | {' | '.join(STAGES)} |\n|{'---|' * (len(STAGES) + 1)}")
    for way in ways:
        print(f"| {name(way)} | {' | '.join(map(spread, zip(*seconds[way], strict=True)))} |")


def load(path: Path | None) -> PreTrainedModel:
    torch.manual_seed(0)
    model: Any = (
        LlamaForCausalLM(LlamaConfig(**SMOLLM2)) if path is None else AutoModelForCausalLM.from_pretrained(path)
    )
    return model.to("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16).eval()


def local_model(causal_lm: PreTrainedModel, enforce_eager: bool) -> LocalModel:
    """Without end tokens, so that every way writes equally much."""
    settings = Settings(
        model=Path(),
        tokenizer=Path(),
        optimizer=OptimizerKwargs(lr=1e-5),
        teacher=TeacherConfig(),
        judge=None,
        max_total_sequence_length=4096,
        generation_batch_size=4096,
        logprob_batch_size=32,
        enforce_eager=enforce_eager,
        prefix_cache_gb=40,
    )
    return LocalModel(causal_lm, settings, frozenset())


def prompts(num_rows: int, number: int) -> list[Tokens]:
    """Of 300 to 349 tokens, and seven more every round."""
    lengths = [PROMPT + 7 * number + row % 50 for row in range(num_rows)]
    return [[(7 * row + 13 * column) % 40 + 5 for column in range(length)] for row, length in enumerate(lengths)]


def time_stages(
    model: LocalModel, way: tuple[bool, bool], rows: list[Tokens], num_tokens: int, num_probes: int
) -> list[float]:
    """Seconds of `STAGES`."""
    torch.backends.cuda.enable_cudnn_sdp(way[1])
    clock = Clock()
    responses = [made.tokens for made in model.generate(rows, Sampling(max_new_tokens=num_tokens), 0)]
    clock.lap()
    model.logprobs(rows, responses)
    clock.lap()
    branches = [[Branch(place, []) for place in range(0, num_tokens, max(1, num_tokens // num_probes))]] * len(rows)
    continued = model.continue_greedily(rows, responses, branches, LENGTH)
    clock.lap()
    model.branch_logprobs(rows, responses, continued)
    clock.lap()
    return clock.laps


class Clock:
    def __init__(self) -> None:
        self.laps: list[float] = []
        self._last = self._now()

    def lap(self) -> None:
        now = self._now()
        self.laps.append(now - self._last)
        self._last = now

    @staticmethod
    def _now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


def name(way: tuple[bool, bool]) -> str:
    enforce_eager, cudnn = way
    return f"{'eager' if enforce_eager else 'graphs'}, {'cuDNN allowed' if cudnn else 'without cuDNN'}"


def spread(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def host_memory() -> float:
    """Resident gigabytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1e6


if __name__ == "__main__":
    main()
