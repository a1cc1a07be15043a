"""What the probes cost on NeMo RL: a training step with weighting=continuation over one with weighting=uniform.

    TORCH_CUDA_ARCH_LIST=9.0 python benchmarks/step_cost_nemo.py --folder DIR [--json FILE] [key=value ...]

One GPU of 80 GB, 70 GB of host memory, 18 GB of disk under DIR. Both arms run in one engine, interleaved (A B A B ...),
over the real `step.train_step`, on random weights in the shape of Qwen3-4B, made once and kept in DIR. Forced, so that
both arms do the same work but for the probes:
  - every response has exactly `--tokens` tokens: neither model nor tokenizer has a token that ends a text;
  - the probe threshold is the quantile of |gap| that makes the wanted trigger rate, measured on a first step;
  - no optimizer step (see OVERRIDES), so that weights, and with them the trigger rate, stay what they were;
  - no judge (context `solution`): it would lengthen both arms and so flatter the ratio.

Not measured: Adam (one kernel a step, and the way of its moments to host memory and back: in both arms, so that leaving
it out raises the ratio), real text. Two GPUs: `cluster.gpus_per_node=2 policy.megatron_cfg.tensor_model_parallel_size=2
policy.megatron_cfg.sequence_parallel=true`.

NeMo RL's start (weights written, converted and loaded twice, vLLM's graphs) takes some four of the 9 minutes, a pair of
steps with 32 responses about 80 s: two or three pairs behind the first. A second run on the same DIR starts faster.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from nemo_aopsd import embedded
from nemo_aopsd.config import Config
from nemo_aopsd.config_files import load_config
from nemo_aopsd.context import student_messages, teacher_messages
from nemo_aopsd.data import Problem
from nemo_aopsd.engine import Engine, Tokenizer
from nemo_aopsd.engines import nemo_rl
from nemo_aopsd.errors import UserError
from nemo_aopsd.objectives import build_objective
from nemo_aopsd.step import StepResult, train_step

GOAL = 1.05  # the paper measured 1.125
CONFIG = Path(__file__).parents[1] / "examples/configs/aopsd_qwen3_4b_megatron.yaml"
ARMS = {"uniform": "PG", "continuation": "PG + continuation"}
STAGES = ("rollout", "student", "teacher", "probes", "update")
# No judge. One card: 8 GB of weights, 16 GB of float32 gradients; Adam would add 40 GB (remainders, moments), SGD 48 GB
# (float32 weights, momentum, gradients), of which 16 GB never leave for vLLM. Either makes its state in the first step
# that it takes, so none is taken: each gradient and its norm are computed, and are then "too large".
OVERRIDES = (
    "aopsd.context.kind=solution",
    "aopsd.curriculum.name=shuffle",
    "cluster.gpus_per_node=1",
    "policy.megatron_cfg.tensor_model_parallel_size=1",
    "policy.megatron_cfg.sequence_parallel=false",
    "policy.megatron_cfg.distributed_data_parallel_config.overlap_param_gather=false",  # waits for a first step
    "+policy.megatron_cfg.optimizer.grad_norm_skip_threshold=0.0",
)


@dataclasses.dataclass(frozen=True)
class Step:
    """One step that was run. `seconds` by stage, by part (see `watch`) and in `total`; `rate` is of all tokens."""

    weighting: str
    seconds: dict[str, float]
    lengths: list[int]  # of the responses, each once, ascending
    threshold: float  # nats
    rate: float
    num_probes: int
    mean_suffix: float

    def __str__(self) -> str:
        work = f"responses of {self.lengths} tokens, {self.rate:.3%} at the threshold, {self.num_probes} probes"
        return f"{ARMS[self.weighting]}: {self.seconds['total']:.1f} s; {work}, mean suffix {self.mean_suffix:.1f}"


def main() -> None:
    started = time.monotonic()
    args = parse_arguments()
    say = partial(print, flush=True)  # workers write to the same terminal
    model = write_model(args.folder, args.layers, args.hidden)
    os.environ.setdefault("NRL_MEGATRON_CHECKPOINT_DIR", str(args.folder.absolute() / "converted"))
    config = make_config(args, model)
    nemo_rl.check(config)
    engine = nemo_rl.build(config)
    engine.tokenizer.end_ids = frozenset()  # before the workers start, for they are told of these
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    say(f"model: {model.name}, random weights; {device}; {' '.join([*OVERRIDES, *args.overrides])}")
    problems = make_problems(engine.tokenizer, config, args.question, args.teacher_prompt)
    deadline = started + 60 * args.minutes if args.minutes else float("inf")
    try:
        steps = measure(engine, config, problems, args.rate, args.steps, deadline, say)
    finally:
        engine.stop()
    say("\n".join(report(steps)))
    asked = {name: value for name, value in vars(args).items() if name not in ("folder", "json")}
    line = json.dumps({"device": device, **asked, **summary(steps), "steps": [dataclasses.asdict(s) for s in steps]})
    say(line)
    if args.json:
        args.json.write_text(line + "\n")


def measure(
    engine: Engine,
    config: Config,
    problems: Sequence[Problem],
    rate: float,
    num_pairs: int,
    deadline: float,
    say: Callable[[str], None],
) -> list[Step]:
    """`num_pairs` pairs of steps, uniform first, behind one that warms up and makes the threshold for `rate`.

    Fewer, but at least one, where the next would end after `deadline` (of `time.monotonic`) if it took as long.
    """
    parts = watch(engine)
    first = run_step(engine, with_arm(config, "uniform", threshold=1.0), problems, parts, seed=0)[1]
    threshold = threshold_of(gaps_of(first), rate)
    uniform, continuation = (with_arm(config, weighting, threshold) for weighting in ARMS)
    sides = ("student_prompt", "teacher_prompt")
    prompts = {side: sorted({len(getattr(rollout, side)) for rollout in first.rollouts}) for side in sides}
    say(f"tokens of prompts: {prompts}; threshold forced to {threshold:.4f} nats, k = {config.aopsd.probes.length}")
    say(f"warm-up, {run_step(engine, continuation, problems, parts, seed=0)[0]}")
    steps: list[Step] = []
    took = 0.0
    for pair in range(1, num_pairs + 1):
        start = time.monotonic()
        if steps and start + took > deadline:
            say(f"only {pair - 1} of {num_pairs} pairs: the time is up (--minutes)")
            break
        for arm in (uniform, continuation):
            steps.append(run_step(engine, arm, problems, parts, seed=pair)[0])
            say(f"pair {pair}, {steps[-1]}")
        took = time.monotonic() - start
    return steps


def run_step(
    engine: Engine, config: Config, problems: Sequence[Problem], parts: dict[str, float], seed: int
) -> tuple[Step, StepResult]:
    """One step, timed. `parts` is what `watch` returned. Every call of the engine waits for its GPUs."""
    parts.clear()
    start = time.perf_counter()
    result = train_step(problems, engine, build_objective(config.aopsd.objective), config, donors={}, seed=seed)
    total = time.perf_counter() - start
    seconds = {stage: result.seconds[stage] for stage in STAGES} | parts | {"total": total}
    suffixes = [len(probe.suffix) for rollout in result.rollouts for probe in rollout.probes]
    threshold = config.aopsd.probes.threshold
    rate = (gaps_of(result) >= threshold).float().mean().item()
    lengths = sorted({len(rollout.output.tokens) for rollout in result.rollouts})
    mean_suffix = statistics.mean(suffixes) if suffixes else 0.0
    return Step(config.aopsd.weighting, seconds, lengths, threshold, rate, len(suffixes), mean_suffix), result


def gaps_of(result: StepResult) -> torch.Tensor:
    """|gap| of every response token of a step, in nats."""
    return torch.cat([rollout.gap.abs() for rollout in result.rollouts])


def threshold_of(gaps: torch.Tensor, rate: float) -> float:
    """The (1 - rate) quantile of `gaps`: that share of them is at or above it."""
    return gaps.double().quantile(1 - rate).item()


def watch(engine: Any) -> dict[str, float]:
    """Seconds inside a few of the engine's methods, by label, added up from now on until cleared."""
    parts: dict[str, float] = {}

    def put(owner: Any, method: str, label: str) -> None:
        inner = getattr(owner, method)

        @wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = inner(*args, **kwargs)
            parts[label] = parts.get(label, 0.0) + time.perf_counter() - start
            return result

        setattr(owner, method, timed)

    put(engine.teacher, "continue_greedily", "teacher continues")
    put(engine.student, "branch_logprobs", "student scores")
    put(engine.cluster, "tell_sampler", "changes of weights")
    for method in ("let_sample", "let_score", "let_train"):
        put(engine.cluster, method, "changes of turn")
    return parts


def summary(steps: Sequence[Step]) -> dict[str, Any]:
    """Median, least and greatest seconds by arm and stage, and ratio of the totals, pair by pair."""
    runs = {arm: [step.seconds for step in steps if step.weighting == arm] for arm in ARMS}
    parts = sorted({name for step in steps for name in step.seconds} - {*STAGES, "total"})
    names = (*STAGES, "total", *parts)
    seconds = {arm: {name: _spread(run.get(name, 0.0) for run in runs[arm]) for name in names} for arm in ARMS}
    pairs = zip(*runs.values(), strict=True)
    ratio = _spread(continuation["total"] / uniform["total"] for uniform, continuation in pairs)
    return {"seconds": seconds, "ratio": ratio, "pairs": len(runs["uniform"]), "goal": GOAL}


def _spread(values: Any) -> dict[str, float]:
    values = sorted(values)
    return {"median": statistics.median(values), "least": values[0], "greatest": values[-1]}


def report(steps: Sequence[Step]) -> list[str]:
    """The table: seconds and share of each stage by arm, and what each stage adds to the ratio."""
    found = summary(steps)
    uniform, continuation = found["seconds"].values()
    whole = uniform["total"]["median"]
    added = {name: (continuation[name]["median"] - uniform[name]["median"]) / whole for name in uniform}
    lines = [f"{'median seconds (least-greatest)':32}{ARMS['uniform']:>28}{ARMS['continuation']:>28}{'adds':>9}"]
    for name in uniform:
        cells = "".join(f"{_cell(arm[name], arm['total']['median']):>28}" for arm in (uniform, continuation))
        label = name if name in (*STAGES, "total") else f"  within these: {name}"
        lines.append(f"{label:32}{cells}{added[name]:>+9.3f}")
    ratio = found["ratio"]
    limits = sorted(STAGES, key=lambda stage: -added[stage])
    return [
        *lines,
        f"ratio {ratio['median']:.3f} (median of {found['pairs']} pairs, {ratio['least']:.3f} to "
        f"{ratio['greatest']:.3f}); goal {GOAL}; limited by {limits[0]}, then {limits[1]}",
        "a change of turn counts to the stage that needs it: the refit to rollout, the way back from probes to update",
    ]


def _cell(seconds: dict[str, float], whole: float) -> str:
    bounds = f"({seconds['least']:.2f}-{seconds['greatest']:.2f})"
    return f"{seconds['median']:.2f} {bounds} {seconds['median'] / whole:6.1%}"


def with_arm(config: Config, weighting: str, threshold: float) -> Config:
    probes = dataclasses.replace(config.aopsd.probes, threshold=threshold)
    return dataclasses.replace(config, aopsd=dataclasses.replace(config.aopsd, weighting=weighting, probes=probes))


def make_config(args: argparse.Namespace, model: Path) -> Config:
    """One GPU, rows as long as the teacher's; packs of a few rows, for one of 1.5 rows would be a third empty."""
    longest = max(args.teacher_prompt, args.question) + args.tokens + 8  # k, the probe
    sizes = [
        f"policy.model_name={model}",
        f"policy.generation.max_new_tokens={args.tokens}",
        f"policy.max_total_sequence_length={longest}",
        *(f"policy.sequence_packing.{kind}_mb_tokens={max(8192, longest)}" for kind in ("train", "logprob")),
        f"aopsd.num_prompts_per_step={args.responses}",
    ]
    return load_config(CONFIG, [*OVERRIDES, *sizes, *args.overrides])


def make_problems(tokenizer: Tokenizer, config: Config, question: int, teacher_prompt: int) -> list[Problem]:
    """Problems of digits, no two alike; prompts of `question` (student) and `teacher_prompt` tokens, template included.

    For a tokenizer that has a token for a digit and the space before it. Raises UserError if a template is too long.
    """
    prompts = config.aopsd.prompts

    def digits(messages: list[dict[str, str]], wanted: int, rng: random.Random) -> str:
        room = wanted - len(tokenizer.render(messages, None))
        if room < 1:
            raise UserError(f"a prompt of {wanted} tokens has no room beside its template: raise it by {1 - room}.")
        return " ".join(rng.choices("0123456789", k=room))

    def build(index: int) -> Problem:
        rng, empty = random.Random(index), Problem(f"p{index}", "", "1", "benchmark", solution="")
        problem = dataclasses.replace(empty, problem=digits(student_messages(empty, prompts), question, rng))
        bare = teacher_messages(problem, "solution", prompts)
        return dataclasses.replace(problem, solution=digits(bare, teacher_prompt, rng))

    return [build(index) for index in range(config.aopsd.num_prompts_per_step)]


def write_model(folder: Path, layers: int, hidden: int) -> Path:
    """A bf16 Hugging Face directory under `folder`, written unless it is there: Qwen3-4B for 36 and 2560, or smaller.

    Without any end token. The tokenizer is the embedded model's: 320 words, enough for prompts, and no more is text.
    """
    if hidden % 320:
        raise UserError(f"--hidden {hidden}: expected a multiple of 320, which makes four heads of each.")
    target = folder.absolute() / f"qwen3_{layers}x{hidden}"
    if target.exists():
        return target
    shape = Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=hidden * 19 // 5,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 80,
        num_key_value_heads=hidden // 320,
        head_dim=128,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    for weight in model.parameters():  # not every version of transformers does
        torch.nn.init.normal_(weight, std=0.02) if weight.dim() > 1 else torch.nn.init.ones_(weight)
    unfinished = target.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    del model
    torch.cuda.empty_cache()  # vLLM will want it
    source = Path(embedded.__file__).parent / "model"
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(source / name, unfinished)
    settings = json.loads((source / "tokenizer_config.json").read_text()) | {"model_max_length": 40960}
    (unfinished / "tokenizer_config.json").write_text(json.dumps(settings))
    return unfinished.rename(target)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="where the model is or will be written")
    add("--json", type=Path, help="file for the last line of the output")
    add("--responses", type=int, default=32, help="responses a step (default 32)")
    add("--tokens", type=int, default=2048, help="tokens of each response (default 2048)")
    add("--teacher-prompt", type=int, default=1500, help="tokens of the teacher's prompt (default 1500)")
    add("--question", type=int, default=300, help="tokens of the student's prompt (default 300)")
    add("--rate", type=float, default=0.0115, help="share of probed tokens (default 0.0115)")
    add("--steps", type=int, default=3, help="pairs of steps behind the first pair (default 3)")
    add("--minutes", type=float, default=9.0, help="no pair that would end later; 0: no limit (default 9)")
    add("--layers", type=int, default=36, help="default 36, as Qwen3-4B")
    add("--hidden", type=int, default=2560, help="default 2560, as Qwen3-4B; a multiple of 320")
    add("overrides", nargs="*", help="key=value of the config")
    return parser.parse_args(words)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
