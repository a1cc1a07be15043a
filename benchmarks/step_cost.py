"""What the probes cost: one training step with weighting=continuation over one with weighting=uniform.

    python benchmarks/step_cost.py [--help]

Both arms run in this one process, interleaved (A B A B ...), over the real `step.train_step` and the local engine on a
model with random weights. Forced, so that both arms do the same work but for the probes:
  - every response has exactly `--tokens` tokens: the model is never told that a text may end;
  - the probe threshold is the quantile of |gap| that makes the wanted trigger rate, measured on a first step;
  - learning rate 0, so that the trigger rate and the responses stay what they were;
  - no judge (context `solution`): it would lengthen both arms and so flatter the ratio.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import string
import time

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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
    torch.set_num_threads(args.threads)
    engine = build_engine(args)
    parameters = sum(weight.numel() for weight in engine.student.network.causal_lm.parameters())
    device = engine.student.network.device
    print(
        f"model: Llama, random weights, {parameters / 1e6:.1f} M parameters, {args.layers} layers x {args.hidden}, "
        f"vocabulary {args.vocabulary}, {args.precision}, {device.type}, {args.threads} threads"
    )
    uniform = make_config(args, weighting="uniform", threshold=1.0)
    first = run_step(engine, uniform)[1]
    gaps = torch.cat([rollout.gap.abs() for rollout in first.scored])
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
    run_step(engine, continuation)  # warm-up of this arm; the first step was the other's
    runs: dict[str, list[dict[str, float]]] = {"uniform": [], "continuation": []}
    for _ in range(args.repeats):
        for config in (uniform, continuation):
            seconds, result = run_step(engine, config)
            runs[config.aopsd.weighting].append(seconds)
    report(runs, result)


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
    for clock in ("whole step", "processor time"):
        uniform, continuation = ([seconds[clock] for seconds in runs[arm]] for arm in ("uniform", "continuation"))
        pairs = sorted(b / a for a, b in zip(uniform, continuation, strict=True))
        best = min(continuation) / min(uniform)
        print(
            f"ratio by {clock}: {statistics.median(pairs):.3f} (median of {len(pairs)} pairs, {pairs[0]:.3f} to "
            f"{pairs[-1]:.3f}); of the fastest steps {best:.3f}; goal {GOAL}"
        )


def run_step(engine: LocalEngine, config: Config) -> tuple[dict[str, float], StepResult]:
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


def build_engine(args: argparse.Namespace) -> LocalEngine:
    """A Llama with the head layout of SmolLM2 (three query heads a key head, head size 64), a token a character."""
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
    model = LlamaForCausalLM(shape).to(device, getattr(torch, args.precision)).eval()
    settings = Settings(
        model="random",
        tokenizer="characters",
        optimizer=OptimizerKwargs(lr=0.0),
        teacher=AOPSDConfig().teacher,
        max_total_sequence_length=args.tokens + 2048,
        precision=args.precision,
        generation_batch_size=args.rollouts,
        logprob_batch_size=args.batch,
        train_micro_batch_size=args.micro_batch,
    )
    # An end token outside the vocabulary is never sampled.
    tokenizer = HFTokenizer(character_tokenizer(), [])
    tokenizer.end_ids = frozenset([args.vocabulary])
    return LocalEngine(model, tokenizer, settings)


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
    return parser.parse_args()


if __name__ == "__main__":
    main()
