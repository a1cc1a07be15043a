r"""Answers of each kind with equivalent rewritings and near misses, made by rule from random numbers.

    python -m tests.grading.rewritings --count 200

prints false rejects and false accepts by kind. Exit code 1 above 1 % of the one or 0.2 % of the other.
"""

import argparse
from collections.abc import Callable

from nemo_aopsd.grading import Grade, grade
from tests.grading import kinds_of_notation, kinds_of_numbers, kinds_of_shapes, kinds_of_words  # noqa: F401  fill KINDS
from tests.grading.answers import KINDS, Answer, Dice


def respond(text: str) -> str:
    """A response that ends in the text, boxed unless it brings boxes of its own."""
    return text if "\\boxed" in text else f"So the answer is \\boxed{{{text}}}."


def failures(
    make: Callable[[Dice], Answer], seed: int, count: int
) -> tuple[int, int, list[tuple[bool, str, str, Grade]]]:
    """Number of rewritings and of near misses, and those with the wrong verdict."""
    dice, same, other, wrong = Dice(seed), 0, 0, []
    for _ in range(count):
        answer = make(dice)
        pairs = [(True, text) for text in answer.same] + [(False, text) for text in answer.other]
        same, other = same + len(answer.same), other + len(answer.other)
        for expected, text in pairs:
            given = grade(respond(text), answer.gold)
            if given.correct != expected:
                wrong.append((expected, answer.gold, text, given))
    return same, other, wrong


def main() -> None:
    """Print the counts by kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=40, help="answers of each kind (default 40)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--show", type=int, default=0, help="this many wrong verdicts of each kind")
    arguments = parser.parse_args()
    totals = [0, 0, 0, 0]
    for name in arguments.kind or KINDS:
        same, other, wrong = failures(KINDS[name], arguments.seed, arguments.count)
        rejects = sum(expected for expected, *_ in wrong)
        totals = [
            total + more for total, more in zip(totals, (same, rejects, other, len(wrong) - rejects), strict=True)
        ]
        print(f"{name:24}{rejects:6} of {same:6} rejected {len(wrong) - rejects:6} of {other:6} accepted", flush=True)
        shown = {
            (expected, text[:3] + gold[:3]): (expected, gold, text, given) for expected, gold, text, given in wrong
        }
        for expected, gold, text, given in list(shown.values())[: arguments.show]:
            print(f"      {'rejected' if expected else 'ACCEPTED'}  gold {gold}   |   {text}   {given.cause}")
    same, rejects, other, accepts = totals
    print(
        f"all kinds: {rejects} of {same} rejected ({rejects / same:.2%}), "
        f"{accepts} of {other} accepted ({accepts / other:.2%})"
    )
    raise SystemExit(rejects > 0.01 * same or accepts > 0.002 * other)


if __name__ == "__main__":
    main()
