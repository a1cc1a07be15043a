"""Speed and steadiness of the grader: verdicts a second on ordinary answers, seconds on hostile ones, and a fuzz run.

    python benchmarks/grading.py --fuzz 100000

Exit code 1 if an output has no verdict, a hostile answer takes more than five seconds, or speed is below 300 a second.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from nemo_aopsd.grading import grade

ORDINARY = [
    ("204", "204"),
    ("1/576", "\\frac{1}{576}"),
    ("\\frac{9}{\\sqrt{23}}", "\\frac{9 \\sqrt{23}}{23}"),
    ("\\frac{1\\pm\\sqrt{5}}{2}", "\\frac{1+\\sqrt{5}}{2}, \\frac{1-\\sqrt{5}}{2}"),
    ("4\\sqrt{37}+14", "14+4\\sqrt{37}"),
    ("(3, -1)", "(3,-1)"),
    ("x^2+2x+1", "(x+1)^2"),
    ("7 \\text{ cm}", "7"),
    ("[0, 1)", "[0,1)"),
    ("20\\pi", "4\\pi \\cdot 5"),
]
HOSTILE = {
    "tower of powers": "\\boxed{9^{9^{9}}}",
    "60 KB of braces": "\\boxed{" + "{" * 30_000 + "}" * 30_000 + "}",
    "60 KB of open braces": "\\boxed{" + "{" * 60_000,
    "boxes nested 2,000 deep": "\\boxed{" * 2000 + "1" + "}" * 2000,
    "braces nested 1,900 deep": "\\boxed{" + "{" * 1900 + "x" + "}" * 1900 + "}",
    "fractions nested 400 deep": "\\boxed{" + "\\frac{1}{" * 400 + "x" + "}" * 400 + "}",
    "huge factorial": "\\boxed{(10^8)!}",
    "huge binomial": "\\boxed{\\binom{10^9}{5\\cdot 10^8}}",
    "long sum": "\\boxed{" + "+".join(f"\\sqrt{{{n}}}" for n in range(2, 350)) + "}",
    "a list of 1,000": "\\boxed{" + ",".join(map(str, range(1000))) + "}",
    "plus-minus a hundred times": "\\boxed{" + "\\pm 1" * 100 + "}",
    "box repeated": "\\boxed{}. " * 5000,
}
_PIECES = [
    *"0123456789+-*/^_=<>()[]{},.;:!|$%&'\\ \n",
    *("\\boxed{", "\\fbox{", "\\boxed {", "}", "\\frac{", "}{", "\\sqrt{", "\\pm ", "\\text{", "\\cup ", "\\infty "),
    *("<think>", "</think>", "\\left(", "\\right)", "\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", "and", " or ", "x="),
    *(
        "\\pi",
        "\u00b0",
        "\u2212",
        "\u221a",
        "\u00d7",
        "cm",
        "\\%",
        "\\{",
        "\\}",
        "i",
        "e",
        "\\sum_{k=1}^{9}",
        "\x00",
        "\ud800",
    ),
]
_GOLDS = ["204", "\\frac{1}{2}", "\\sqrt{6}", "1, 2", "(2,3)", "[0,1)", "\\text{east}", "x^2+1", "20\\pi", "50\\%"]


def fuzz_output(random_numbers: random.Random) -> str:
    """Junk, or a gold answer with junk in it; most of it in a box."""
    junk = "".join(random_numbers.choices(_PIECES, k=random_numbers.randint(0, 8)))
    if random_numbers.random() < 0.5:
        gold = random_numbers.choice(_GOLDS)
        cut = random_numbers.randint(0, len(gold))
        junk = gold[:cut] + "".join(random_numbers.choices(_PIECES, k=random_numbers.randint(0, 2))) + gold[cut:]
    return junk if random_numbers.random() < 0.1 else f"\\boxed{{{junk}}}"


def fuzz(count: int, seed: int = 0, threads: int = 2) -> Counter[str]:
    """Grade `count` random outputs; the reasons, which add up to `count` if each has one verdict."""
    random_numbers = random.Random(seed)
    outputs = [(fuzz_output(random_numbers), random_numbers.choice(_GOLDS)) for _ in range(count)]
    with ThreadPoolExecutor(threads) as pool:
        grades = list(pool.map(lambda pair: grade(*pair), outputs))
    reasons = Counter(f"{given.reason} ({given.cause[:60]})" if given.cause else given.reason for given in grades)
    return reasons


def verdicts_per_second(integers: int, first: int, rounds: int = 60, threads: int = 2) -> float:
    """Verdicts a second on distinct answers, so that no cache helps: a round has `integers` and all of ORDINARY."""
    pairs = []
    for n in range(first, first + rounds):
        pairs += [(f"\\boxed{{{1000 * n + k}}}", str(n)) for k in range(integers)]
        pairs += [(f"\\boxed{{{predicted}{f'+{n}' if n else ''}}}", answer) for predicted, answer in ORDINARY]
    grade("\\boxed{x+1}", "1+x")  # starts the process
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        grades = list(pool.map(lambda pair: grade(*pair), pairs))
    return len(grades) / (time.perf_counter() - started)


def main() -> None:
    """Print the three measurements."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--fuzz", type=int, default=2000, metavar="N", help="random outputs (default 2000)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"answers that all need algebra: {verdicts_per_second(0, first=0):.0f} verdicts a second")
    rate = verdicts_per_second(
        3 * len(ORDINARY), first=1000
    )  # of the golds of AIME, HMMT and BRUMO, 3 in 4 are integers
    print(f"ordinary answers, three quarters integers: {rate:.0f} verdicts a second")
    slowest = 0.0
    for name, output in HOSTILE.items():
        started = time.perf_counter()
        given = grade(output, "\\sqrt{7}")
        seconds = time.perf_counter() - started
        slowest = max(slowest, seconds)
        print(f"hostile: {name}: {seconds:.2f} s, {given.reason} {given.cause[:60]}")
    started = time.perf_counter()
    reasons = fuzz(arguments.fuzz, arguments.seed)
    print(f"fuzz: {reasons.total()} verdicts on {arguments.fuzz} outputs in {time.perf_counter() - started:.0f} s")
    for reason, count in reasons.most_common(20):
        print(f"  {count:7d} {reason}")
    raise SystemExit(rate < 300 or slowest > 5.0 or reasons.total() != arguments.fuzz)


if __name__ == "__main__":
    main()
