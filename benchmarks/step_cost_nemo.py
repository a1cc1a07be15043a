"""What a method's step costs on NeMo RL over one of PG: PG with continuations, and the top-k forward KL.

    TORCH_CUDA_ARCH_LIST=9.0 python -m benchmarks.step_cost_nemo --folder DIR [--arm NAME ...] [--json FILE] [key=value]
    TORCH_CUDA_ARCH_LIST=9.0 python -m benchmarks.step_cost_nemo --folder DIR --baseline FILE

One GPU of 80 GB, 70 GB of host memory, 18 GB of disk under DIR. All arms run in one engine, in a new random order each
round, over the real `step.train_step`, on random weights in the shape of Qwen3-4B, made once and kept in DIR. Methods
are named in arms.py; `uniform@sampler` and the like score by what `aopsd.scoring` calls so, the others as the config
says; `batched:0.03` probes that share of the tokens, the others `--rate`. `grpo` is a step of NeMo RL's own GRPO
(stock_grpo.py): its refit, rollout and update are held against those of the `uniform` arms. Forced, so that the arms do
the same work but for what is the method's:
  - every response has exactly `--tokens` tokens: neither model nor tokenizer has a token that ends a text;
  - the probe threshold is the quantile of |gap| that makes the wanted trigger rate, measured on a first step;
  - no optimizer step (see OVERRIDES), so that weights, and with them the trigger rate, stay what they were; `--adam`
    takes it, on a card of 140 GB;
  - no judge (context `solution`), but for `aopsd`: it would lengthen both arms and so flatter the ratio.
Not measured: real text. Adam, which both arms would have, lowers the ratio. NeMo RL's start
takes some four of the 9 minutes, a step with 32 responses 35 to 40 s. A second run on the same DIR starts faster.

With `--baseline`, what `--json` wrote on the same card before: its arms and sizes are run again, or only those arms and
as many rounds as are named, and the command ends with 1 if a stage is slower by 5 % and beyond chance (baseline.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
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

import networkx as nx
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from benchmarks import baseline
from benchmarks.arms import PG, STAGES, STOCK, Step, checked, config_of, plain, report, split, summary
from nemo_aopsd import builtin as embedded
from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.schema import Config
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import Tokenizer
from nemo_aopsd.engines import nemo_rl
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import student_messages, teacher_messages
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.step import StepResult, train_step

CHECKPOINTS = 8  # of a problem's graph
CONFIG = Path(__file__).parents[1] / "examples/configs/aopsd_qwen3_4b_megatron.yaml"
# No judge. One card: 8 GB of weights, 16 GB of float32 gradients; Adam would add 40 GB (remainders, moments), SGD 48 GB
# (float32 weights, momentum, gradients), of which 16 GB never leave for vLLM. Either makes its state in the first step
# that it takes, so none is taken: each gradient and its norm are computed, and are then "too large".
NO_STEP = "+policy.megatron_cfg.optimizer.grad_norm_skip_threshold=0.0"
OVERRIDES = (
    "aopsd.context.kind=solution",
    "aopsd.curriculum.name=shuffle",
    "cluster.gpus_per_node=1",
    "policy.megatron_cfg.tensor_model_parallel_size=1",
    "policy.megatron_cfg.sequence_parallel=false",
    "policy.megatron_cfg.distributed_data_parallel_config.overlap_param_gather=false",  # waits for a first step
)


def main() -> None:
    started = time.monotonic()
    args = parse_arguments()
    say = partial(print, flush=True)  # workers write to the same terminal
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    then = read_baseline(args, device) if args.baseline else None
    if STOCK in (args.arm or []):
        importlib.import_module("benchmarks.stock_grpo")  # fails now, and not after the start
    model = write_model(args.folder, args.layers, args.hidden, args.experts)
    os.environ.setdefault("NRL_MEGATRON_CHECKPOINT_DIR", str(args.folder.absolute() / "converted"))
    config = make_config(args, model)
    nemo_rl.check(config)
    engine = nemo_rl.build(config)
    engine.tokenizer.end_ids = frozenset()  # before the workers start, for they are told of these
    say(f"model: {model.name}, random weights; {device}; {' '.join(overrides_of(args))}")
    problems = make_problems(engine.tokenizer, config, args.question, args.teacher_prompt)
    deadline = started + 60 * args.minutes if args.minutes else float("inf")
    arms, exit_code = args.arm or ["uniform", "continuation"], 0
    again = partial(measure, engine, config, problems, arms, args.rate, args.steps or 3, deadline, say)
    asked = {name: value for name, value in vars(args).items() if name not in ("folder", "json", "baseline")}
    asked |= {"device": device, "scoring": config.aopsd.scoring}  # the scoring of arms that name none

    def keep(steps: Sequence[Step]) -> None:
        if args.json:
            args.json.write_text(as_json(asked, steps) + "\n")

    try:
        steps = again(keep)
        if then:
            exit_code = baseline.verdict(then, by_stage(steps), lambda: by_stage(again()), "seconds")
    finally:
        engine.stop()
    say("\n".join(report(steps)))
    say(as_json(asked, steps))
    if exit_code:
        sys.exit(exit_code)


def as_json(asked: dict[str, Any], steps: Sequence[Step]) -> str:
    return json.dumps({**asked, **summary(steps), "steps": [dataclasses.asdict(step) for step in steps]})


def read_baseline(args: argparse.Namespace, device: str) -> baseline.Stages:
    """Its stages; `args` take its sizes, and its arms and rounds where none are asked for.

    Raises UserError for the file of another card, and for an arm that it does not have.
    """
    then = json.loads(args.baseline.read_text(encoding="utf-8"))
    if then["device"] != device:
        raise UserError(
            f"{args.baseline}: seconds of {then['device']}, and this is {device}, so they say nothing of the code. "
            f"Expected a file of the same card. Make one: the same command with --json FILE."
        )
    sizes = ("responses", "tokens", "teacher_prompt", "question", "rate", "layers", "hidden", "overrides")
    later = {"adam": False, "experts": 0}  # than the oldest files
    vars(args).update({name: then[name] for name in sizes}, **{name: then.get(name, no) for name, no in later.items()})
    arms = list(dict.fromkeys(step["arm"] for step in then["steps"]))
    if missing := set(args.arm or []) - {*arms}:
        raise UserError(f"{args.baseline}: has no arm {', '.join(sorted(missing))}, only {', '.join(arms)}.")
    args.arm, args.steps = args.arm or arms, args.steps or then["rounds"]
    return by_stage([Step(**step) for step in then["steps"]])


def by_stage(steps: Sequence[Step]) -> baseline.Stages:
    """Seconds of each arm's stages that are not small, and of its whole step."""
    found = baseline.Stages()
    for arm in sorted({step.arm for step in steps}):
        runs = [step.seconds for step in steps if step.arm == arm]
        whole = statistics.median(run["total"] for run in runs)
        for stage in (*STAGES, "total"):
            seconds = [run.get(stage, 0.0) for run in runs]  # older files know no judge
            if statistics.median(seconds) > baseline.LEAST_SHARE * whole:
                found[f"{arm}: {stage}"] = seconds
    return found


def measure(
    engine: Any,
    config: Config,
    problems: Sequence[Problem],
    arms: Sequence[str],
    rate: float,
    num_rounds: int,
    deadline: float,
    say: Callable[[str], None],
    keep: Callable[[Sequence[Step]], None] = lambda steps: None,
) -> list[Step]:
    """`num_rounds` rounds of a step an arm in random order, behind one that warms up each method and scoring.

    That makes the threshold for `rate`, from a step of PG with the scoring of the first arm. `keep` gets all steps so
    far behind each round.

    Fewer, but at least one, where the next would end after `deadline` (of `time.monotonic`) if it took as long.
    """
    parts = watch(engine)
    first = run_step(engine, plain(arms[0]), config_of(plain(arms[0]), config, 1.0), problems, parts, seed=0)[1]
    gaps = gaps_of(first).double()
    shares = {name: split(name)[2] or rate for name in arms}  # of the gaps that are at or above the threshold
    configs = {name: config_of(name, config, gaps.quantile(1 - share).item()) for name, share in shares.items()}
    forced = sorted({config.aopsd.probes.threshold for config in configs.values()}, reverse=True)
    say(f"threshold forced to {', '.join(f'{each:.4f}' for each in forced)} nats, k = {config.aopsd.probes.length}")
    warm = {split(plain(arms[0]))[:2]}
    for name in arms:
        if split(name)[:2] in warm:
            continue
        warm.add(split(name)[:2])
        say(f"warm-up, {run_arm(engine, name, configs[name], problems, parts, seed=0)}")
    steps, took = list[Step](), 0.0
    for number in range(1, num_rounds + 1):
        start = time.monotonic()
        if steps and start + took > deadline:
            say(f"only {number - 1} of {num_rounds} rounds: the time is up (--minutes)")
            break
        for name in random.Random(number).sample(arms, len(arms)):
            steps.append(run_arm(engine, name, configs[name], problems, parts, seed=number))
            say(f"round {number}, {steps[-1]}")
        keep(steps)
        took = time.monotonic() - start
    return steps


def run_arm(
    engine: Any, name: str, config: Config, problems: Sequence[Problem], parts: dict[str, float], seed: int
) -> Step:
    """One step, timed. `parts` is what `watch` returned. Every call of the engine waits for its GPUs."""
    if name != STOCK:
        return run_step(engine, name, config, problems, parts, seed)[0]
    from benchmarks.stock_grpo import take_step  # which imports NeMo RL

    seconds, lengths = take_step(engine, config, problems)
    return Step(name, dict.fromkeys(STAGES, 0.0) | seconds, lengths, config.aopsd.probes.threshold, None, 0, 0.0)


def run_step(
    engine: Any, name: str, config: Config, problems: Sequence[Problem], parts: dict[str, float], seed: int
) -> tuple[Step, StepResult]:
    """`run_arm` of a method of ours, with what came of it."""
    parts.clear()
    chosen = {"scoring": config.aopsd.scoring, "probe_runner": config.aopsd.probes.runner}
    engine.settings = dataclasses.replace(engine.settings, **chosen)
    for model in (engine.student, engine.teacher):
        model.settings = engine.settings
    start = time.perf_counter()
    result = train_step(problems, engine, build_objective(config.aopsd.objective), config, donors={}, seed=seed)
    total = time.perf_counter() - start
    turns = {
        name: value for name, value in result.train_metrics.items() if name.partition("/")[0] in ("turn", "worker")
    }
    seconds = {stage: result.seconds.get(stage, 0.0) for stage in STAGES} | parts | turns | {"total": total}
    suffixes = [len(probe.suffix) for row in result.scored for probe in row.probes]
    threshold = config.aopsd.probes.threshold
    rate = (gaps_of(result) >= threshold).float().mean().item() if split(name)[0] in PG else None
    lengths = sorted({len(row.draft.output.tokens) for row in result.scored})
    mean_suffix = statistics.mean(suffixes or [0.0])
    return Step(name, seconds, lengths, threshold, rate, len(suffixes), mean_suffix), result


def gaps_of(result: StepResult) -> torch.Tensor:
    """|gap| of every response token of a step, in nats."""
    return torch.cat([row.gap.abs() for row in result.scored if row.gap is not None])


def watch(engine: Any) -> dict[str, float]:
    """Seconds inside the two calls of a probe, by label, added up from now on until cleared.

    The changes of turn are timed by the engine itself: `turn/...` and `worker/...` of a step's metrics.
    """
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
    return parts


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
    return load_config(CONFIG, [*sizes, *overrides_of(args)])


def overrides_of(args: argparse.Namespace) -> list[str]:
    return [*OVERRIDES, *([] if args.adam else [NO_STEP]), *args.overrides]


def make_problems(tokenizer: Tokenizer, config: Config, question: int, teacher_prompt: int) -> list[Problem]:
    """Problems of digits, no two alike, with prompts of `question` (student) and `teacher_prompt` tokens in all.

    For a tokenizer that has a token for a digit and the space before it. Raises UserError if a template is too long.
    """
    prompts = config.aopsd.prompts

    def digits(messages: list[dict[str, str]], wanted: int, rng: random.Random) -> str:
        room = wanted - len(tokenizer.render(messages, None))
        if room < 1:
            raise UserError(f"a prompt of {wanted} tokens has no room beside its template: raise it by {1 - room}.")
        return " ".join(rng.choices("0123456789", k=room))

    def graph(problem: Problem, rng: random.Random) -> nx.DiGraph:
        """Checkpoints without edges: each is reached or next, so that all are shown whatever the judge finds."""
        empty = dataclasses.replace(problem, dag=_checkpoints([""] * CHECKPOINTS))
        bare = teacher_messages(empty, "dag_frontier", prompts)
        words = digits(bare, teacher_prompt, rng).split(" ")
        each = max(len(words) // CHECKPOINTS, 1)
        return _checkpoints([" ".join(words[place * each : (place + 1) * each]) for place in range(CHECKPOINTS)])

    def build(index: int) -> Problem:
        rng, empty = random.Random(index), Problem(f"p{index}", "", "1", "benchmark", solution="")
        problem = dataclasses.replace(empty, problem=digits(student_messages(empty, prompts), question, rng))
        bare = teacher_messages(problem, "solution", prompts)
        problem = dataclasses.replace(problem, solution=digits(bare, teacher_prompt, rng))
        return dataclasses.replace(problem, dag=graph(problem, rng))

    return [build(index) for index in range(config.aopsd.num_prompts_per_step)]


def _checkpoints(statements: Sequence[str]) -> nx.DiGraph:
    graph = nx.DiGraph()
    for number, statement in enumerate(statements, start=1):
        graph.add_node(str(number), statement=statement)
    return graph


def write_model(folder: Path, layers: int, hidden: int, experts: int = 0) -> Path:
    """A bf16 Hugging Face directory under `folder`, written unless it is there: Qwen3-4B for 36 and 2560, or smaller.

    `hidden` is a multiple of 320. With `experts`, a multiple of 512, and Qwen3-30B-A3B for 48, 2048 and 128. Without
    any end token. The tokenizer is the embedded model's, of 320 words.
    """
    target = folder.absolute() / f"qwen3_{layers}x{hidden}{f'x{experts}' if experts else ''}"
    if target.exists():
        return target
    common = {
        "vocab_size": 151936,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "eos_token_id": None,
    }
    shape = Qwen3Config(
        **common,
        intermediate_size=hidden * 19 // 5,
        num_attention_heads=hidden // 80,
        num_key_value_heads=hidden // 320,
        tie_word_embeddings=True,
    )
    if experts:
        shape = Qwen3MoeConfig(
            **common,
            intermediate_size=hidden * 3,
            moe_intermediate_size=hidden * 3 // 8,
            num_attention_heads=hidden // 64,
            num_key_value_heads=hidden // 512,
            num_experts=experts,
            num_experts_per_tok=8,
            norm_topk_prob=True,
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
    add("--json", type=Path, help="file for the numbers, written behind each round")
    add("--baseline", type=Path, help="such a file of this card, to hold the stages against")
    add("--responses", type=int, default=32, help="responses a step (default 32)")
    add("--tokens", type=int, default=2048, help="tokens of each response (default 2048)")
    add("--teacher-prompt", type=int, default=1500, help="tokens of the teacher's prompt (default 1500)")
    add("--question", type=int, default=300, help="tokens of the student's prompt (default 300)")
    add("--rate", type=float, default=0.0115, help="share of probed tokens (default 0.0115)")
    add("--arm", action="append", type=checked, help="METHOD[@SCORING][:RATE]; default uniform and continuation")
    add("--steps", type=int, help="rounds of a step an arm, behind the first round (default 3, or the baseline's)")
    add("--minutes", type=float, default=9.0, help="no round that would end later; 0: no limit (default 9)")
    add("--adam", action="store_true", help="take the optimizer's step; 140 GB with the default size")
    add("--layers", type=int, default=36, help="default 36, as Qwen3-4B")
    add("--hidden", type=int, default=2560, help="default 2560, as Qwen3-4B; a multiple of 320")
    add("--experts", type=int, default=0, help="a mixture of so many; Qwen3-30B-A3B: 128, --hidden 2048, 48 layers")
    add("overrides", nargs="*", help="key=value of the config")
    return parser.parse_args(words)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
