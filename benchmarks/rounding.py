"""What rounding alone does to a model's log-probs: bfloat16, and FP8 as Transformer Engine has it, against float32.

    python -m benchmarks.rounding MODEL PROBLEMS.jsonl [--prompts tiny] [--count 32] [--tokens 64]

On a CPU, on the model's own sampled responses. It is the yardstick that the GPU tests hold the trainer against. Also:
how often the most likely word differs in bfloat16, and by how many nats float32 likes its own one better there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from nemo_aopsd.config.load import load_config
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.method.context import student_messages
from nemo_aopsd.types import Sampling
from tests.gpu.fp8 import round_products
from tests.gpu.test_nemo_rl_engine import differences, local_engine
from tests.gpu.test_topk import regret_of_the_first

CONFIG = Path(__file__).parents[1] / "examples/configs/aopsd_tiny_cpu.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("problems", type=Path)
    parser.add_argument("--prompts", default="default")
    parser.add_argument("--count", type=int, default=32, help="problems, a response each")
    parser.add_argument("--tokens", type=int, default=64, help="the most of a response")
    args = parser.parse_args()
    config = load_config(CONFIG, [f"aopsd.prompts={args.prompts}"])
    exact, bf16, fp8 = (local_engine(args.model, precision) for precision in ("float32", "bfloat16", "bfloat16"))
    round_products(fp8.student.network.causal_lm)
    chosen = load_problems(args.problems)[: args.count]
    messages = (student_messages(problem, config.aopsd.prompts) for problem in chosen)
    prompts = [bf16.tokenizer.render(message, None) for message in messages]
    generations = bf16.student.generate(prompts, Sampling(max_new_tokens=args.tokens), 0)
    responses = [generation.tokens for generation in generations]
    expected = exact.student.logprobs(prompts, responses)
    for name, engine in (("bfloat16", bf16), ("fp8", fp8)):
        print(name, differences(engine.student.logprobs(prompts, responses), expected))
    best, rounded = (engine.student.top_logprobs(prompts, responses, 16) for engine in (exact, bf16))
    lost = regret_of_the_first(rounded, best)
    differs = torch.cat([a.ids[:, 0] != b.ids[:, 0] for a, b in zip(rounded, best, strict=True)])
    print(f"first word: {differs.float().mean():.3f} differ in bfloat16, regret at most {lost.max():.4f} nats")


if __name__ == "__main__":
    main()
