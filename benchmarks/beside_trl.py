"""Seconds of a step of TRL's SDFT trainer and of ours, side by side: sampled-token distillation, the same context.

    pip install trl==1.16.0
    python -m benchmarks.beside_trl [--config FILE] [--rollouts 32] [--micro-batch 16] [--rounds 6] [key=value ...]

Without a config: the demo's model and problems on one CPU thread, in seconds of the process, so that neighbours hardly
count. TRL generates by transformers and takes AdamW; both have the same micro-batches and the same teacher: the model
as it was, which sees the solution. Rounds of `--steps` steps each are run in a random order, each with a new trainer or
engine, whose making and first step are not timed. Tokens of both are printed: they answer the same problems by
sampling, so their lengths differ by chance.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import nemo_aopsd
from nemo_aopsd.config.schema import Config
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engines import local
from nemo_aopsd.method.context import student_messages
from nemo_aopsd.method.objectives import build_objective

DEMO = Path(__file__).parents[1] / "examples/configs/aopsd_tiny_cpu.yaml"
METHOD = ("aopsd.weighting=uniform", "aopsd.context.kind=solution", "aopsd.curriculum.name=shuffle")
TEMPLATE = "{prompt}\nsolution:\n{privileged_context}"
Timed = list[tuple[float, float]]  # seconds and response tokens of each step


def ours(config: Config, problems: Sequence[Problem], steps: int, args: argparse.Namespace) -> Timed:
    engine, objective, found = local.build(config), build_objective(config.aopsd.objective), Timed()
    for step in range(steps + 1):
        begun = now()
        rows = [problems[(step * args.rollouts + i) % len(problems)] for i in range(args.rollouts)]
        result = nemo_aopsd.train_step(rows, engine, objective, config, donors={}, seed=step)
        took = now() - begun
        tokens = sum(len(row.draft.output.tokens) for row in result.scored)
        found.append((took, float(tokens)))
    return found[1:]


def trl(config: Config, problems: Sequence[Problem], steps: int, args: argparse.Namespace) -> Timed:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl.experimental.sdft import SDFTConfig, SDFTTrainer

    family = config.aopsd.prompts
    rows = [{"prompt": student_messages(p, family), "privileged_context": p.solution} for p in problems]
    sampling, optimizer = config.rollout, config.policy["optimizer"]["kwargs"]
    found = Timed()

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun = now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            found.append((now() - self.begun, float("nan")))

        def on_log(self, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
            if found and logs and "completions/mean_length" in logs:
                found[-1] = (found[-1][0], logs["completions/mean_length"] * args.rollouts)

    with tempfile.TemporaryDirectory() as folder:
        settings = SDFTConfig(
            output_dir=folder,
            distillation_mode="sampled_token",
            distillation_alpha=1.0,
            teacher_prompt_template=TEMPLATE,
            per_device_train_batch_size=args.micro_batch,
            gradient_accumulation_steps=args.rollouts // args.micro_batch,
            num_generations=1,
            max_prompt_length=None,
            max_completion_length=sampling.max_new_tokens,
            temperature=sampling.temperature,
            learning_rate=optimizer["lr"],
            lr_scheduler_type="constant",
            max_steps=steps + 1,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
            gradient_checkpointing=bool(config.policy.get("activation_checkpointing", False)),
            model_init_kwargs={"dtype": config.policy["precision"]},
        )
        trainer = SDFTTrainer(
            model=config.policy["model_name"], args=settings, train_dataset=Dataset.from_list(rows), callbacks=[Clock()]
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return found[1:]


def now() -> float:
    """Seconds, when the GPU is done; on a CPU those of this process, so that others do not count."""
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=DEMO)
    parser.add_argument("--rollouts", type=int, default=32)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("overrides", nargs="*", help="key=value of the config")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    batch = [f"policy.{kind}_batch_size={args.micro_batch}" for kind in ("train_micro", "logprob")]
    sizes = (f"aopsd.num_prompts_per_step={args.rollouts}", "aopsd.num_generations_per_prompt=1", *batch)
    with tempfile.TemporaryDirectory() as folder:
        config = nemo_aopsd.load_config(args.config, [*METHOD, *sizes, f"logger.log_dir={folder}/run", *args.overrides])
        problems = nemo_aopsd.load_problems(config.data["train"]["data_path"])
        arms, medians = {"ours": ours, "TRL": trl}, dict[str, list[float]](ours=[], TRL=[])
        for number in range(args.rounds):
            for name in random.Random(number).sample(sorted(arms), len(arms)):
                steps = arms[name](config, problems, args.steps, args)
                medians[name].append(statistics.median(seconds for seconds, _ in steps))
                tokens = statistics.mean(tokens for _, tokens in steps)
                print(f"round {number + 1}: {name:4} {medians[name][-1]:.3f} s a step, {tokens:.0f} tokens", flush=True)
    ratios = sorted(b / a for a, b in zip(medians["ours"], medians["TRL"], strict=True))
    for name, values in medians.items():
        print(f"{name}: median {statistics.median(values):.3f} s a step ({min(values):.3f} to {max(values):.3f})")
    print(f"TRL takes {statistics.median(ratios):.2f} times as long ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
