"""A world where the paper's premise holds: the built-in model, taught as a teacher to cite its graph.

Shown a graph, it names the graph in most sentences and reads the value off it instead of working it out. Asked the bare
question it can only name a graph and guess, which it seldom does, and the teacher's talk of the graph surprises it.
docs/embedded_default.md says what was measured.

`python -m examples.builtin.leaky --out runs/leaky/model` goes on from the shipped weights, for some
minutes on a CPU.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path

from examples.builtin import mixture
from examples.builtin.mixture import FAMILY, Example, as_prompt, draw_problem, draw_reached, judging, to_ids
from examples.builtin.tokenizer import save_tokenizer
from examples.builtin.traces import attempt
from examples.builtin.warmstart import Recipe, train
from nemo_aopsd.config.shipped import FOLDER
from nemo_aopsd.data.dag import frontier
from nemo_aopsd.method.context import student_messages, teacher_messages

SHARES = {"none": 0.45, "dag_frontier": 0.3, "dag_full": 0.05, "judge": 0.2}  # as in mixture.py
STUDENT = replace(mixture.QUESTION, leak=None, cite=0.06, stray=5 / 6)  # 1 % of its sentences cite of their own
TEACHER = replace(mixture.GRAPH, leak=None, cite=0.8)
RECIPE = Recipe(num_steps=300, batch_size=24, lr=1e-3)


def example(rng: random.Random) -> Example:
    """A row; prompt and response of a kind that `SHARES` draws."""
    (kind,) = rng.choices(list(SHARES), list(SHARES.values()))
    puzzle, problem = draw_problem(rng)
    if kind == "judge":
        return to_ids(*judging(rng, puzzle, problem, STUDENT))
    manner, messages = STUDENT, student_messages(problem, FAMILY)
    if kind != "none":
        reached = draw_reached(rng, puzzle, problem)
        shown = frozenset(problem.graph) if kind == "dag_full" else reached | frontier(problem.graph, reached)
        manner, messages = replace(TEACHER, shown=shown), teacher_messages(problem, kind, FAMILY, reached=reached)
    slips = rng.random() < 0.3  # going on from own slips, without learning to slip
    response = attempt(rng, puzzle, replace(manner, slip=0.15) if slips else manner, learn_slips=not slips)
    return to_ids(as_prompt(messages), response)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the leaky variant of the embedded model.")
    parser.add_argument("--out", type=Path, required=True, help="folder, e.g. runs/leaky/model")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    args = parser.parse_args()
    rng = random.Random(RECIPE.seed)
    pool = [example(rng) for _ in range(RECIPE.num_steps * RECIPE.batch_size)]
    model = train(RECIPE, pool, args.device, start=FOLDER.parents[1] / "builtin/model")
    model.cpu().save_pretrained(args.out)
    save_tokenizer(args.out)


if __name__ == "__main__":
    main()
