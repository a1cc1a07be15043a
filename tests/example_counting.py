"""Combinatorics of the example set, counted by listing every case; see example_algebra for the form."""

import math
from itertools import combinations, pairwise, permutations, product

from tests.example_formulas import Facts, value


def no_twin_books() -> Facts:
    orders = set(permutations("AABBCCD"))
    formula = r"\frac{(7-k)!}{2^{3-k}}"

    def together(order: tuple[str, ...], letters: str) -> bool:
        return all(letter * 2 in "".join(order) for letter in letters)

    glued = {s: sum(together(o, s) for o in orders) for s in ("", "A", "B", "C", "AB", "AC", "BC", "ABC")}
    bad = sum(any(together(o, letter) for letter in "ABC") for o in orders)
    return len(orders) - bad, {
        "1": [formula, all(n == value(formula, k=len(s)) for s, n in glued.items())],
        "2": [glued[""]],
        "3": [glued["A"] == glued["B"] == glued["C"], glued["A"]],
        "4": [glued["AB"] == glued["AC"] == glued["BC"], glued["AB"]],
        "5": [glued["ABC"]],
        "6": [bad],
    }


def routes(start: tuple[int, int], end: tuple[int, int]) -> list[set[tuple[int, int]]]:
    """The grid points of every route that goes right and up."""
    if start == end:
        return [{end}]
    steps = [(start[0] + 1, start[1]), (start[0], start[1] + 1)]
    inside = [step for step in steps if step[0] <= end[0] and step[1] <= end[1]]
    return [{start} | route for step in inside for route in routes(step, end)]


def one_kiosk() -> Facts:
    start, a, b, end = (0, 0), (2, 1), (5, 3), (7, 5)
    every, whole = routes(start, end), "routes from $(0,0)$ to $(7,5)$ pass"
    return sum((a in route) != (b in route) for route in every), {
        "1": [f"${len(routes(start, a))}$ shortest routes from $(0,0)$ to $A$"],
        "2": [f"${len(routes(a, end))}$ shortest routes from $A$ to $(7,5)$"],
        "3": [f"${len(routes(start, b))}$ shortest routes from $(0,0)$ to $B$"],
        "4": [f"${len(routes(b, end))}$ shortest routes from $B$ to $(7,5)$"],
        "5": [f"${len(routes(a, b))}$ shortest routes from $A$ to $B$"],
        "6": [f"${sum(a in route for route in every)}$ {whole} $A$"],
        "7": [f"${sum(b in route for route in every)}$ {whole} $B$"],
        "8": [f"${sum({a, b} <= route for route in every)}$ {whole} both"],
    }


def no_gap_of_three() -> Facts:
    chains = [(1, 4, 7, 10), (2, 5, 8, 11), (3, 6, 9)]
    neighbours = {pair for chain in chains for pair in pairwise(chain)}

    shown = [f"${','.join(map(str, chain))}$" for chain in chains]

    def choices(numbers: tuple[int, ...]) -> int:
        subsets = (set(s) for size in range(len(numbers) + 1) for s in combinations(numbers, size))
        return sum(all(n + 3 not in subset for n in subset) for subset in subsets)

    counts = [choices(tuple(range(0, 3 * k, 3))) for k in range(1, 8)]
    recursion = all(counts[k] == counts[k - 1] + counts[k - 2] for k in range(2, 7))
    return choices(tuple(range(1, 12))), {
        "1": [
            {pair for pair in combinations(range(1, 12), 2) if pair[1] - pair[0] == 3} == neighbours,
            *shown,
            "differ by $3$",
        ],
        "2": [choices(tuple(range(1, 12))) == math.prod(map(choices, chains)), *shown],
        "3": [
            f"a_1={counts[0]}",
            f"a_2={counts[1]}",
            "a_k=a_{k-1}+a_{k-2}",
            recursion,
        ],
        "4": [f"a_3={counts[2]}"],
        "5": [f"a_4={counts[3]}"],
        "6": [*shown[:2], choices(chains[0] + chains[1])],
        "7": [shown[2], f"${choices(chains[2])}$ choices"],
    }


def prism_corners() -> Facts:
    """Rotations are the permutations of the corners that keep all distances and the orientation."""
    base = [(math.cos(2 * math.pi * k / 3), math.sin(2 * math.pi * k / 3)) for k in range(3)]
    corners = [(*point, height) for height in (0.0, 2.5) for point in base]

    def orientation(p: tuple[int, ...]) -> float:
        (a, b, c), (d, e, f), (g, h, i) = (
            [u - v for u, v in zip(corners[p[k]], corners[p[0]], strict=True)] for k in (1, 2, 3)
        )
        return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)

    def is_rotation(p: tuple[int, ...]) -> bool:
        pairs = combinations(range(6), 2)
        rigid = all(
            math.isclose(math.dist(corners[p[i]], corners[p[j]]), math.dist(corners[i], corners[j])) for i, j in pairs
        )
        return rigid and orientation(p) * orientation(tuple(range(6))) > 0

    rotations = [p for p in permutations(range(6)) if is_rotation(p)]
    paintings = list(product("RWB", repeat=6))
    turned = {p: [tuple(c[k] for k in p) for c in paintings] for p in rotations}
    fixed = {p: sum(c == t for c, t in zip(paintings, turned[p], strict=True)) for p in rotations}
    thirds = [p for p in rotations if p != tuple(range(6)) and {p[0], p[1], p[2]} == {0, 1, 2}]
    halves = [p for p in rotations if p[0] >= 3]
    third = r"by $120^\circ$ or $240^\circ$ moves the corners in two cycles of length $3$"
    orbits = {min(images) for images in zip(*turned.values(), strict=True)}
    return len(orbits), {
        "1": [
            len(rotations),
            (len(thirds), len(halves)) == (2, 3),
            all(p[p[k]] == k for p in halves for k in range(6)),
        ],
        "2": [fixed[tuple(range(6))]],
        "3": [{cycle_lengths(p) for p in thirds} == {(3, 3)}, third, f"leaves ${fixed[thirds[0]]}$ paintings"],
        "4": [{cycle_lengths(p) for p in halves} == {(2, 2, 2)}, "three cycles of length $2$", fixed[halves[0]]],
        "5": [sum(fixed.values())],
    }


def cycle_lengths(p: tuple[int, ...]) -> tuple[int, ...]:
    left, lengths = set(range(len(p))), []
    while left:
        start = k = min(left)
        length = 0
        while k in left:
            left.remove(k)
            k, length = p[k], length + 1
        assert k == start
        lengths.append(length)
    return tuple(sorted(lengths))


def gift_circle() -> Facts:
    every = list(permutations(range(7)))
    allowed = [p for p in every if all(p[k] != k and p[p[k]] != k for k in range(7))]
    types = [cycle_lengths(p) for p in allowed]
    return len(allowed), {
        "1": [
            sorted(types) == sorted(t for t in map(cycle_lengths, every) if not {1, 2} & set(t)),
            "length $1$ or $2$",
        ],
        "2": [set(types) == {(7,), (3, 4)}, "$7$ alone, or $3$ and $4$"],
        "3": [types.count((7,)), "length $7$"],
        "4": ["are $3$ and $4$", len(list(combinations(range(7), 3)))],
        "5": ["are $3$ and $4$", f"in ${_full_cycles(3)}$ ways", f"in ${_full_cycles(4)}$ ways"],
        "6": [types.count((3, 4)), "lengths $3$ and $4$"],
    }


def _full_cycles(size: int) -> int:
    return sum(cycle_lengths(p) == (size,) for p in permutations(range(size)))


def triangles_on_pegs() -> Facts:
    triples = list(combinations(product(range(5), range(3)), 3))

    def flat(triple) -> bool:
        (a, b), (c, d), (e, f) = triple
        return (c - a) * (f - b) == (e - a) * (d - b)

    in_row = [t for t in triples if flat(t) and len({y for _, y in t}) == 1]
    across = [sorted(t, key=lambda peg: peg[1]) for t in triples if flat(t) and len({y for _, y in t}) == 3]
    ends = {(t[0][0], t[2][0]) for t in across}
    return sum(not flat(t) for t in triples), {
        "1": [all(flat(t) == (_doubled_area(t) == 0) for t in triples)],
        "2": [len(triples)],
        "3": [len(in_row) + len(across) == sum(map(flat, triples)), all(2 * b[0] == a[0] + c[0] for a, b, c in across)],
        "4": [len(in_row)],
        "5": [ends == {(i, j) for i in range(5) for j in range(5) if (i + j) % 2 == 0}, len(ends) == len(across)],
        "6": [len(across)],
        "7": [sum(map(flat, triples))],
    }


def _doubled_area(triple) -> int:
    return abs(sum(a * d - b * c for (a, b), (c, d) in zip(triple, triple[1:] + triple[:1], strict=True)))
