r"""Seconds of a step of TRL's SDFT trainer and of ours, side by side: sampled-token distillation, the same context.

    pip install trl==1.16.0
    python -m benchmarks.beside_trl [--config FILE] [--rollouts 32] [--micro-batch 16] [--rounds 6] [key=value ...]
    CUDA_VISIBLE_DEVICES=0 python -m benchmarks.beside_trl --config examples/configs/gsm8k.yaml --rollouts 128 \
        --steps 2 --warm-tokens 64 --minutes 5 --json FILE policy.dynamic_batching.train_mb_tokens=16384

Without a config: the demo's model and problems on one CPU thread, in seconds of the process, so that neighbours hardly
count. On one GPU: wall clock, with the GPU waited for. A round is `--steps` steps of each in a random order, each with
a new trainer or engine, whose making and first step are not timed. Both take the same problems in the same order, the
same prompts for student and teacher (the model as it was, which sees the solution), the same sampling and AdamW. They
answer by sampling, so the tokens differ by chance; both are told.

TRL has what is fastest for it. Model, gradients and Adam's state are in the precision of the config without autocast
(ours keeps float32 weights beside bfloat16 ones), attention is `sdpa`, nothing is recomputed, AdamW is fused. Its
generation is transformers' with a growing cache, for it compiles no decoding (`disable_compile`), and answers a whole
step at once; with `--trl-vllm 0.3` it is vLLM's, in the same process, with that share of the GPU's memory. A
micro-batch that does not fit is halved, for this round and the next. Ours takes `--micro-batch` too, unless the config
batches by tokens.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers

import nemo_aopsd
from nemo_aopsd import clock
from nemo_aopsd.config.schema import Config
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engines import local
from nemo_aopsd.method.context import student_messages, teacher_messages
from nemo_aopsd.method.objectives import build_objective

DEMO = Path(__file__).parents[1] / "examples/configs/aopsd_tiny_cpu.yaml"
METHOD = ("aopsd.weighting=uniform", "aopsd.context.kind=solution", "aopsd.curriculum.name=shuffle")
OURS, TRL = "ours", "TRL"


@dataclass(frozen=True)
class Step:
    seconds: float
    rollout: float  # seconds of these in which the student answered
    tokens: float  # of all responses


@dataclass(frozen=True)
class Run:
    """What an arm did in a round. `peak_gb` includes its making, and is 0 on a CPU."""

    round: int
    arm: str
    steps: list[Step]
    peak_gb: float
    micro_batch: int

    def __str__(self) -> str:
        seconds = " ".join(f"{step.seconds:.3f} ({step.rollout:.3f})" for step in self.steps)
        tokens = statistics.mean(step.tokens for step in self.steps)
        return (
            f"round {self.round}: {self.arm:4} {seconds} s a step (rollout), {tokens:.0f} tokens, {self.peak_gb:.1f} GB"
        )


def ours(config: Config, problems: Sequence[Problem], number: int, args: argparse.Namespace) -> list[Step]:
    engine, objective, found = local.build(config), build_objective(config.aopsd.objective), list[Step]()
    for step in range(args.steps + 1):
        rows = [problems[(step * args.rollouts + i) % len(problems)] for i in range(args.rollouts)]
        asked = config if step or not args.warm_tokens else cut(config, args.warm_tokens)
        begun = now()
        result = nemo_aopsd.train_step(rows, engine, objective, asked, donors={}, seed=1000 * number + step)
        took = now() - begun
        tokens = sum(len(row.draft.output.tokens) for row in result.scored)
        found.append(Step(took, result.seconds["rollout"], float(tokens)))
    return found[1:]


def cut(config: Config, tokens: int) -> Config:
    """`config` with responses of at most so many tokens."""
    return replace(
        config, policy=config.policy | {"generation": config.policy["generation"] | {"max_new_tokens": tokens}}
    )


def trl(config: Config, problems: Sequence[Problem], number: int, args: argparse.Namespace) -> list[Step]:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl.experimental.sdft import SDFTTrainer

    rollouts, found = list[float](), list[Step]()

    class Trainer(SDFTTrainer):
        def _generate(self, prompt_ids: list[list[int]]) -> Any:
            warms = not self.state.global_step and args.warm_tokens  # vLLM warms with whole answers
            self.generation_config.max_new_tokens = warms or config.rollout.max_new_tokens
            begun = now()
            answers = super()._generate(prompt_ids)
            rollouts.append(now() - begun)
            return answers

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun = now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            found.append(Step(now() - self.begun, rollouts[-1], float("nan")))

        def on_log(self, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
            if found and logs and "completions/mean_length" in logs:
                found[-1] = replace(found[-1], tokens=logs["completions/mean_length"] * args.rollouts)

    rows = Dataset.from_list([both_prompts(problem, config) for problem in problems])
    with tempfile.TemporaryDirectory() as folder:
        settings = trl_settings(config, folder, number, args)
        settings.teacher_prompt_template = "{privileged_context}"  # its constructor wants {prompt} too
        trainer = Trainer(model=config.policy["model_name"], args=settings, train_dataset=rows, callbacks=[Clock()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return found[1:]


def both_prompts(problem: Problem, config: Config) -> dict[str, Any]:
    """TRL's row. Its teacher prompt is the student's with another last message, which is all of ours."""
    family, context = config.aopsd.prompts, config.aopsd.context.kind
    asked, told = student_messages(problem, family), teacher_messages(problem, context, family)
    assert told[:-1] == asked[:-1], "TRL can change the last message only"
    return {"prompt": asked, "privileged_context": told[-1]["content"]}


def trl_settings(config: Config, folder: str, number: int, args: argparse.Namespace) -> Any:
    from trl.experimental.sdft import SDFTConfig

    sampling, optimizer = config.rollout, config.policy["optimizer"]["kwargs"]
    beta1, beta2 = optimizer.get("betas", (0.9, 0.999))
    return SDFTConfig(
        output_dir=folder,
        seed=number,
        distillation_mode="sampled_token",
        distillation_alpha=1.0,
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=args.rollouts // args.micro_batch,
        num_generations=1,
        shuffle_dataset=False,
        max_prompt_length=None,
        max_completion_length=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        optim="adamw_torch_fused" if torch.cuda.is_available() else "adamw_torch",
        learning_rate=optimizer["lr"],
        weight_decay=optimizer.get("weight_decay", 0.0),
        adam_beta1=beta1,
        adam_beta2=beta2,
        max_grad_norm=config.policy.get("max_grad_norm", 1.0),
        lr_scheduler_type="constant",
        max_steps=args.steps + 1,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,  # the weights are; autocast would only add casts
        gradient_checkpointing=False,
        use_vllm=args.trl_vllm is not None,
        vllm_gpu_memory_utilization=args.trl_vllm or 0.0,
        vllm_max_model_length=config.max_row_tokens,
        model_init_kwargs={"dtype": config.policy["precision"], "attn_implementation": "sdpa"},
    )


def now() -> float:
    """Seconds, when the GPU is done; on a CPU those of this process, so that others do not count."""
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def run(name: str, number: int, config: Config, problems: Sequence[Problem], args: argparse.Namespace) -> Run:
    """One arm, on a GPU that holds nothing else."""
    cuda = torch.cuda.is_available()
    while True:
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            steps = {OURS: ours, TRL: trl}[name](config, problems, number, args)
        except torch.OutOfMemoryError:
            if name == OURS or args.micro_batch % 2:
                raise
        else:
            return Run(number, name, steps, torch.cuda.max_memory_allocated() / 1e9 if cuda else 0.0, args.micro_batch)
        args.micro_batch //= 2  # outside of the handler, whose traceback holds the tensors
        print(f"round {number}: {name} does not fit; now {args.micro_batch} rows a micro-batch", flush=True)


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Medians of steps by arm, and TRL's median over ours by round."""
    found: dict[str, Any] = {}
    medians: dict[str, dict[int, float]] = {OURS: {}, TRL: {}}
    for name in medians:
        of = [each for each in runs if each.arm == name]
        medians[name] = {each.round: statistics.median(step.seconds for step in each.steps) for each in of}
        steps = [step for each in of for step in each.steps]
        if steps:
            found[name] = {
                "seconds": spread([step.seconds for step in steps]),
                "rollout": spread([step.rollout for step in steps]),
                "tokens": spread([step.tokens for step in steps]),
                "ms_per_token": 1000 * sum(step.seconds for step in steps) / sum(step.tokens for step in steps),
                "peak_gb": max(each.peak_gb for each in of),
            }
    if both := sorted(medians[TRL].keys() & medians[OURS].keys()):
        found["ratio"] = spread([medians[TRL][number] / medians[OURS][number] for number in both])
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def told(values: dict[str, float], digits: int) -> str:
    return "{median:.{n}f} ({least:.{n}f} to {greatest:.{n}f})".format(**values, n=digits)


def report(found: dict[str, Any]) -> str:
    lines = [
        f"{name}: {told(of['seconds'], 3)} s a step, rollout {told(of['rollout'], 3)}, {told(of['tokens'], 0)} tokens, "
        f"{of['ms_per_token']:.3f} ms a token, at most {of['peak_gb']:.1f} GB"
        for name, of in found.items()
        if name != "ratio"
    ]
    return "\n".join([*lines, f"TRL takes {told(found['ratio'], 2)} times as long" if "ratio" in found else "no round"])


def measure(config: Config, problems: Sequence[Problem], args: argparse.Namespace) -> list[Run]:
    """The file is written after every arm, so that a run that is cut still tells what it had."""
    started, runs, longest = time.monotonic(), list[Run](), 0.0
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    asked = {name: str(value) for name, value in vars(args).items() if name != "json"}
    about = {"device": device, "torch": torch.__version__, "transformers": transformers.__version__, "asked": asked}
    for number in range(1, args.rounds + 1):
        begun = time.monotonic()
        if args.minutes and runs and begun + longest > started + 60 * args.minutes:
            print(f"only {number - 1} of {args.rounds} rounds: the time is up (--minutes)")
            break
        for name in random.Random(number).sample((OURS, TRL), 2):
            runs.append(run(name, number, config, problems, args))
            print(runs[-1], flush=True)
            if args.json:
                line = json.dumps(about | summary(runs) | {"runs": [asdict(each) for each in runs]})
                args.json.write_text(line + "\n", encoding="utf-8")
        longest = max(longest, time.monotonic() - begun)
    return runs


def main() -> None:
    args = parse_arguments()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
        clock.time = SimpleNamespace(perf_counter=time.process_time)  # of our stages, as `now`
    batch = [f"policy.{kind}_batch_size={args.micro_batch}" for kind in ("train_micro", "logprob")]
    sizes = (f"aopsd.num_prompts_per_step={args.rollouts}", "aopsd.num_generations_per_prompt=1", *batch)
    with tempfile.TemporaryDirectory() as folder:
        config = nemo_aopsd.load_config(args.config, [*METHOD, *sizes, f"logger.log_dir={folder}/run", *args.overrides])
        problems = nemo_aopsd.load_problems(config.data["train"]["data_path"])
        print(report(summary(measure(config, problems, args))))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=DEMO)
    parser.add_argument("--rollouts", type=int, default=32)
    parser.add_argument("--micro-batch", type=int, default=16, help="rows; must divide the rollouts")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warm-tokens", type=int, help="of a response in the step that is not timed (default: all)")
    parser.add_argument("--trl-vllm", type=float, metavar="SHARE", help="TRL answers by vLLM; of the GPU's memory")
    parser.add_argument("--minutes", type=float, help="start no round that would end later, but the first")
    parser.add_argument("--json", type=Path, help="written after every arm of a round")
    parser.add_argument("overrides", nargs="*", help="key=value of the config")
    args = parser.parse_args()
    if args.rollouts % args.micro_batch:
        parser.error(f"--micro-batch {args.micro_batch} does not divide --rollouts {args.rollouts}")
    return args


if __name__ == "__main__":
    main()
