"""What the probes cost: one training step with weighting=continuation over one with weighting=uniform.

    python -m benchmarks.step_cost [--help]
    make perf, or python -m benchmarks.step_cost --baseline FILE [--write]

Both arms run in this one process, interleaved (A B A B ...), over the real `step.train_step` and the local engine on a
model with random weights. Forced, so that both arms do the same work but for the probes:
  - every response has exactly `--tokens` tokens: the model is never told that a text may end;
  - the probe threshold is the quantile of |gap| that makes the wanted trigger rate, measured on a first step;
  - learning rate 0, so that the trigger rate and the responses stay what they were;
  - no judge (context `solution`): it would lengthen both arms and so flatter the ratio.

With `--baseline` each stage is held against FILE's (baseline.py), as multiples of a yardstick that is run beside every
step: transformers' own generation, forward and backward pass on a model of this shape, none of it our code. So most of
a machine's speed cancels out; on a CPU all are seconds of this process. Sizes are those of FILE; `--write` makes it
anew.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import string
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks import baseline
from nemo_aopsd import clock
from nemo_aopsd.config.nemo_rl_keys import OptimizerKwargs
from nemo_aopsd.config.schema import AOPSDConfig, Config, ContextConfig, CurriculumConfig
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engines.local.engine import LocalEngine
from nemo_aopsd.engines.local.settings import Settings
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.step import StepResult, train_step
from nemo_aopsd.models.tokenizer import HFTokenizer

GOAL = 1.125  # the paper's 27 over 24 minutes
PROBLEM = "A farmer has 17 fields of 23 rows with 31 plants each. Every fifth plant fails. How many are left? " * 2
SOLUTION = "There are 17 * 23 = 391 rows, so 391 * 31 = 12121 plants. A fifth fails, which leaves 12121 - 2424. " * 3


def main() -> None:
    args = parse_arguments()
    if args.baseline and not args.write:
        vars(args).update(json.loads(args.baseline.read_text())["sizes"])
    torch.set_num_threads(args.threads)
    if not torch.cuda.is_available():
        clock.time = SimpleNamespace(perf_counter=time.process_time)  # of the stages: neighbours hardly count
    engine = build_engine(args)
    parameters = sum(weight.numel() for weight in engine.student.network.causal_lm.parameters())
    device = engine.student.network.device
    print(
        f"model: Llama, random weights, {parameters / 1e6:.1f} M parameters, {args.layers} layers x {args.hidden}, "
        f"vocabulary {args.vocabulary}, {args.precision}, {device.type}, {args.threads} threads"
    )
    uniform = make_config(args, weighting="uniform", threshold=1.0)
    first = run_step(engine, uniform)[1]
    gaps = torch.cat([gap.abs() for rollout in first.scored if (gap := rollout.gap) is not None])
    threshold = gaps.quantile(1 - args.trigger_rate).item()
    continuation = make_config(args, weighting="continuation", threshold=threshold)
    lengths = sorted({len(rollout.draft.output.tokens) for rollout in first.scored})
    prompts = [
        statistics.mean(len(getattr(rollout.draft, side)) for rollout in first.scored)
        for side in ("student_prompt", "teacher_prompt")
    ]
    print(
        f"work: {args.rollouts} rollouts of {lengths} tokens; prompts {prompts[0]:.0f} (student), {prompts[1]:.0f} "
        f"(teacher) tokens; threshold forced to {threshold:.3f} nats, k = {continuation.aopsd.probes.length}"
    )
    rod = yardstick(args) if args.baseline else lambda: 0.0
    run_step(engine, continuation)  # warm-up of this arm; the first step was the other's
    rod()
    again = partial(measure, engine, (uniform, continuation), rod, args.repeats)
    runs, rods = again()
    if args.write:
        baseline.write(args.baseline, baseline.over(runs, rods), sizes_of(args))
    elif args.baseline:
        sys.exit(baseline.hold_against(args.baseline, baseline.over(runs, rods), lambda: baseline.over(*again())))


def sizes_of(args: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if name not in ("baseline", "write")}


def measure(
    engine: LocalEngine, configs: Sequence[Config], rod: Callable[[], float], repeats: int
) -> tuple[dict[str, list[dict[str, float]]], list[float]]:
    """Seconds by stage of the steps of each arm, and of the yardstick behind each pair; told, too."""
    runs: dict[str, list[dict[str, float]]] = {config.aopsd.weighting: [] for config in configs}
    rods, last = list[float](), None
    for _ in range(repeats):
        for config in configs:
            seconds, last = run_step(engine, config)
            runs[config.aopsd.weighting].append(seconds)
        rods.append(rod())
    assert last is not None, "--repeats is at least 1"
    report(runs, last)
    return runs, rods


def report(runs: dict[str, list[dict[str, float]]], last: StepResult) -> None:
    """Prints seconds by stage, the trigger rate of the last continuation step, and the ratio with its spread."""
    num_tokens = sum(len(rollout.draft.output.tokens) for rollout in last.scored)
    probes = [probe for rollout in last.scored for probe in rollout.probes]
    suffix = statistics.mean(len(probe.suffix) for probe in probes) if probes else 0.0
    print(
        f"trigger rate: {len(probes)} of {num_tokens} tokens = {len(probes) / num_tokens:.2%}; mean suffix {suffix:.1f}"
    )
    print(f"{'median seconds':24}{'uniform':>14}{'continuation':>14}")
    for stage in runs["uniform"][0]:
        a, b = (statistics.median(seconds[stage] for seconds in runs[arm]) for arm in ("uniform", "continuation"))
        print(f"  {stage:22}{a:14.3f}{b:14.3f}")
    for kind in ("whole step", "processor time"):
        uniform, continuation = ([seconds[kind] for seconds in runs[arm]] for arm in ("uniform", "continuation"))
        pairs = sorted(b / a for a, b in zip(uniform, continuation, strict=True))
        best = min(continuation) / min(uniform)
        print(
            f"ratio by {kind}: {statistics.median(pairs):.3f} (median of {len(pairs)} pairs, {pairs[0]:.3f} to "
            f"{pairs[-1]:.3f}); of the fastest steps {best:.3f}; goal {GOAL}"
        )


def yardstick(args: argparse.Namespace) -> Callable[[], float]:
    """Seconds of transformers' own work on such a model: an answer to each row, and a training pass over it."""
    model = build_model(args)
    torch.manual_seed(0)
    prompts = torch.randint(4, 100, (args.rollouts, 64), device=model.device)
    generating = {"max_new_tokens": args.tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

    def seconds() -> float:
        start = now()
        rows = model.generate(prompts, attention_mask=torch.ones_like(prompts), **generating)
        for part in rows.split(args.micro_batch):
            model(part, labels=part).loss.backward()
        model.zero_grad()
        return now() - start

    return seconds


def now() -> float:
    """Of this process on a CPU; else when the GPU is done."""
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def run_step(engine: Any, config: Config) -> tuple[dict[str, float], StepResult]:
    """Seconds of one step by stage, and its result; every step has the same seed and so the same responses.

    Processor time counts this process alone, so that other work on the machine stretches it little.
    """
    size = config.aopsd.num_prompts_per_step
    problems = [Problem(f"p{i}", f"{PROBLEM}(case {i})", "1", "benchmark", solution=SOLUTION) for i in range(size)]
    objective = build_objective(config.aopsd.objective)
    start, cpu_start = time.perf_counter(), time.process_time()
    result = train_step(problems, engine, objective, config, donors={}, seed=0)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = {"whole step": time.perf_counter() - start, "processor time": time.process_time() - cpu_start}
    return result.seconds | seconds, result


def make_config(args: argparse.Namespace, *, weighting: str, threshold: float) -> Config:
    aopsd = AOPSDConfig(
        num_prompts_per_step=args.rollouts,
        weighting=weighting,
        context=ContextConfig(kind="solution"),
        curriculum=CurriculumConfig(name="shuffle"),
    )
    aopsd = dataclasses.replace(aopsd, probes=dataclasses.replace(aopsd.probes, threshold=threshold))
    policy = {"generation": {"max_new_tokens": args.tokens}, "max_total_sequence_length": args.tokens + 2048}
    return Config(aopsd, policy, {}, {}, {}, {})


def build_model(args: argparse.Namespace) -> Any:
    """A Llama with the head layout of SmolLM2 (three query heads a key head, head size 64), random weights."""
    torch.manual_seed(0)
    heads = args.hidden // 64
    shape = LlamaConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        intermediate_size=args.hidden * 8 // 3,
        num_hidden_layers=args.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 3),
        max_position_embeddings=args.tokens + 2048,
        initializer_range=0.05,
        tie_word_embeddings=True,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = LlamaForCausalLM(shape)
    return model.to(device, getattr(torch, args.precision)).eval()


def build_engine(args: argparse.Namespace) -> LocalEngine:
    """On such a model, with a token a character."""
    settings = Settings(
        model=Path("random"),
        tokenizer=Path("characters"),
        optimizer=OptimizerKwargs(lr=0.0),
        teacher=AOPSDConfig().teacher,
        judge=None,
        max_total_sequence_length=args.tokens + 2048,
        precision=args.precision,
        generation_batch_size=args.rollouts,
        logprob_batch_size=args.batch,
        train_micro_batch_size=args.micro_batch,
    )
    # An end token outside the vocabulary is never sampled.
    tokenizer = HFTokenizer(character_tokenizer(), [])
    tokenizer.end_ids = frozenset([args.vocabulary])
    return LocalEngine(build_model(args), tokenizer, settings)


def character_tokenizer() -> PreTrainedTokenizerFast:
    pieces = ["<end>", "<user>", "<assistant>", *string.printable]
    core = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>")
    tokenizer.chat_template = "{% for m in messages %}<user>{{ m['content'] }}<end>{% endfor %}<assistant>"
    return tokenizer


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=8, help="rollouts a step (default 8)")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of each response (default 512)")
    parser.add_argument("--trigger-rate", type=float, default=0.01, help="share of probed tokens (default 0.01)")
    parser.add_argument("--repeats", type=int, default=7, help="steps of each arm (default 7)")
    parser.add_argument("--layers", type=int, default=6, help="default 6; SmolLM2-135M has 30")
    parser.add_argument("--hidden", type=int, default=192, help="default 192; SmolLM2-135M has 576")
    parser.add_argument("--vocabulary", type=int, default=8192, help="default 8192; SmolLM2-135M has 49152")
    parser.add_argument("--batch", type=int, default=8, help="rows a scoring batch (default 8)")
    parser.add_argument("--micro-batch", type=int, default=4, help="rows a training micro-batch (default 4)")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--baseline", type=Path, help="a file to hold the stages against")
    parser.add_argument("--write", action="store_true", help="write that file instead")
    args = parser.parse_args()
    if args.write and not args.baseline:
        parser.error("--write: give the file as --baseline FILE")
    return args


if __name__ == "__main__":
    main()
