"""How far `fkl` and `dash` on a support of K words are from those over the whole vocabulary (docs/methods.md).

    python -m benchmarks.support [--problems 96] [--student DIRECTORY]

The embedded model answers problems of its training set; the divergences and their gradients by the student's logits,
in float64, are compared over all tokens of the answers. The teacher is the embedded model with the method's context,
the student the same one, or a checkpoint of a run as a model directory.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import nemo_aopsd
from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.engines import local
from nemo_aopsd.method.context import donors_for, student_messages, teacher_messages
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.objectives.distillation import Distillation
from nemo_aopsd.types import TopK

EMBEDDED = Path(nemo_aopsd.__file__).parent / "builtin"
CONFIG = Path(nemo_aopsd.__file__).parents[1] / "examples/configs/aopsd_tiny_cpu.yaml"
COMPARED = {
    "fkl, no clip": ("solution", ObjectiveConfig(name="fkl")),
    "opsd": ("solution", ObjectiveConfig(name="fkl", token_clip=0.05)),
    "op2sd": ("other_problem", ObjectiveConfig(name="fkl", token_clip=0.05)),
    "op2sd_4b_paper": ("other_problem", ObjectiveConfig(name="fkl", token_clip=1e-6)),
    "dash": ("solution", ObjectiveConfig(name="dash", token_clip=0.05)),
}
SIZES = (16, 32, 64, 128)
Pair = tuple[Tensor, Tensor]  # log-softmax [T, V] of student and teacher


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=96)
    parser.add_argument("--student", default=str(EMBEDDED / "model"))
    arguments = parser.parse_args()
    pairs = distributions(arguments.problems, arguments.student)
    print("| config | K | loss | difference | gradient's | cosine | teacher's mass beyond K, mean / most |")
    print("|---|---|---|---|---|---|---|")
    for name, (context, config) in COMPARED.items():
        exact, wanted = loss_and_gradient(pairs[context], config)
        for size in SIZES:
            found, gradient = loss_and_gradient(pairs[context], config, size)
            beyond = torch.cat([1 - teacher.topk(size, -1).values.exp().sum(-1) for _, teacher in pairs[context]])
            cosine = torch.nn.functional.cosine_similarity(gradient, wanted, 0)
            print(
                f"| {name} | {size} | {exact:.5f} | {(found - exact) / abs(exact):+.2%} | "
                f"{(gradient - wanted).norm() / wanted.norm():.2%} | {cosine:.6f} | "
                f"{beyond.mean():.1e} / {beyond.max():.1e} |"
            )


@torch.no_grad()
def distributions(num_problems: int, student: str) -> dict[str, list[Pair]]:
    """By context: of each answer, what student and teacher expected at its tokens."""
    config = load_config(CONFIG)
    engine = local.build(config)
    problems = load_problems(EMBEDDED / "data/train.jsonl")[:num_problems]
    donors = donors_for(problems, "other_problem", seed=0)
    prompts = [engine.tokenizer.render(student_messages(problem, "tiny"), None) for problem in problems]
    answers = [output.tokens for output in engine.student.generate(prompts, config.rollout, 0)]
    models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64) for path in (student, EMBEDDED / "model")]

    def expected(model: torch.nn.Module, prompt: list[int], answer: list[int]) -> Tensor:
        return model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)

    found: dict[str, list[Pair]] = {}
    for context in {context for context, _ in COMPARED.values()}:
        for problem, prompt, answer in zip(problems, prompts, answers, strict=True):
            messages = teacher_messages(problem, context, "tiny", donor=donors[problem.id])
            teacher = expected(models[1], engine.tokenizer.render(messages, None), answer)
            found.setdefault(context, []).append((expected(models[0], prompt, answer), teacher))
    return found


def loss_and_gradient(pairs: list[Pair], config: ObjectiveConfig, size: int | None = None) -> tuple[float, Tensor]:
    """The objective over all tokens, and its gradient by the student's logits in one vector."""
    made, total, gradients = cast(Distillation, build_objective(config)), 0.0, []
    num_tokens = sum(len(student) for student, _ in pairs)
    for student, teacher in pairs:
        logits = student.clone().requires_grad_()
        top = teacher.topk(size or 1, -1)
        side = teacher if size is None else TopK(top.indices, top.values, teacher.new_zeros(0))
        divergence = made.divergence(logits.log_softmax(-1), side)[None]
        mask = torch.ones_like(divergence, dtype=torch.bool)
        loss, _ = made(divergence, divergence=divergence, mask=mask, num_tokens=num_tokens, num_rows=len(pairs))
        gradients.append(torch.autograd.grad(loss, logits)[0].flatten())
        total += loss.item()
    return total, torch.cat(gradients)


if __name__ == "__main__":
    main()
