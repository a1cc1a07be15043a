"""Probability of the example set, by listing outcomes or following the process; see example_algebra for the form."""

import math
from fractions import Fraction
from itertools import combinations, pairwise, product

from sympy import Rational

from tests.example_formulas import Facts, equation, literal, value


def product_twelve() -> Facts:
    products = [math.prod(roll) for roll in product(range(1, 7), repeat=3)]
    return Fraction(sum(p % 12 == 0 for p in products), len(products)), {
        "1": [
            all((p % 12 != 0) == (p % 3 != 0 or p % 4 != 0) for p in products),
            "by $12$ exactly when it is not divisible by $3$ or not divisible by $4$",
        ],
        "2": [sum(p % 3 != 0 for p in products), len(products), "by $3$"],
        "3": [sum(p % 4 != 0 for p in products), len(products), "by $4$"],
        "4": [sum(p % 3 != 0 and p % 4 != 0 for p in products), len(products), "by $3$ nor by $4$"],
        "5": [sum(p % 12 != 0 for p in products), len(products), "by $12$"],
    }


def beetle_on_octahedron() -> Facts:
    """Vertex v is opposite to 5 - v; the beetle starts at 0."""
    adjacent = {v: [w for w in range(6) if w not in (v, 5 - v)] for v in range(6)}
    walks = [[(0,)]]
    for _ in range(5):
        walks.append([(*walk, w) for walk in walks[-1] for w in adjacent[walk[-1]]])
    ring = [Fraction(sum(walk[-1] not in (0, 5) for walk in level), len(level)) for level in walks]
    steps = pairwise(map(Rational, ring))
    answer = Fraction(sum(walk[-1] == 5 for walk in walks[5]), len(walks[5]))
    return answer, {
        "1": [adjacent[0] == adjacent[5] == [1, 2, 3, 4], all({0, 5} < set(adjacent[v]) for v in (1, 2, 3, 4))],
        "2": [equation(r"r_{n+1}=1-\frac{1}{2}r_n", *({"r_n": r, "r_{n+1}": s} for r, s in steps))],
        "3": [f"r_1={ring[1]}"],
        "4": [f"r_2={literal(ring[2])}", f"r_3={literal(ring[3])}"],
        "5": [f"r_4={literal(ring[4])}"],
        "6": [r"$\frac{1}{4}r_4$, where $r_4$", answer == ring[4] / 4],
    }


def two_heads_first() -> Facts:
    """Each probability is followed toss by toss until less than 10^-9 is undecided; denominators stay under 1000."""
    heads, tails = Fraction(1, 3), Fraction(2, 3)

    def chance(run: str) -> Fraction:
        won, open_runs = Fraction(0), {run: Fraction(1)}
        while sum(open_runs.values()) > Fraction(1, 10**9):
            following: dict[str, Fraction] = {}
            for tosses, weight in open_runs.items():
                won += weight * heads if tosses == "H" else 0
                moves = [("T" if tosses in ("", "H") else tosses + "T", tails)] + [("H", heads)] * (tosses != "H")
                for after, share in moves:
                    if after != "TTT":
                        following[after] = following.get(after, Fraction(0)) + weight * share
            open_runs = following
        return won.limit_denominator(1000)

    answer, h, t1, t2 = (chance(run) for run in ("", "H", "T", "TT"))
    states, wanted = {"h": Rational(h), "t_1": Rational(t1), "t_2": Rational(t2)}, r"\frac{1}{3}h+\frac{2}{3}t_1"
    return answer, {
        "1": ["With $h,t_1,t_2$", wanted, value(wanted, **states) == Rational(answer)],
        "2": ["With $h,t_1$ ", equation(r"h=\frac{1}{3}+\frac{2}{3}t_1", states)],
        "3": ["With $h,t_1,t_2$ ", equation(r"t_1=\frac{1}{3}h+\frac{2}{3}t_2", states)],
        "4": ["With $h,t_2$ ", equation(r"t_2=\frac{1}{3}h", states)],
        "5": ["With $h,t_1$ ", equation(r"t_1=\frac{5}{9}h", states)],
        "6": [equation(r"h=\frac{9}{17}", states)],
        "7": [equation(r"t_1=\frac{5}{17}", states)],
    }


def even_product() -> Facts:
    pairs = list(combinations(range(1, 21), 2))
    even = [(a, b) for a, b in pairs if a * b % 2 == 0]
    both = [(a, b) for a, b in even if (a + b) % 3 == 0]
    remainders = ",".join(str(sum(n % 3 == r for n in range(1, 21))) for r in range(3))
    return Fraction(len(both), len(even)), {
        "1": [all((a * b % 2 == 1) == (a % 2 == b % 2 == 1) for a, b in pairs), len(range(1, 21, 2))],
        "2": [len(even)],
        "3": [f"remainders $0,1,2$ modulo $3$ occur ${remainders}$ times", r"$1,\dots,20$"],
        "4": [sum((a + b) % 3 == 0 for a, b in pairs), "by $3$"],
        "5": [sum((a + b) % 3 == 0 and a * b % 2 == 1 for a, b in pairs), "by $3$"],
        "6": [len(both), "by $3$"],
    }
