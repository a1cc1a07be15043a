"""Combinatorics and probability of the example set, counted by listing every case; see example_algebra for the form."""

import math
from fractions import Fraction
from itertools import combinations, pairwise, permutations, product

Facts = tuple[object, dict[str, list[object]]]


def no_twin_books() -> Facts:
    orders = set(permutations("AABBCCD"))

    def together(order: tuple[str, ...], letters: str) -> bool:
        return all(letter * 2 in "".join(order) for letter in letters)

    glued = {s: sum(together(o, s) for o in orders) for s in ("", "A", "B", "C", "AB", "AC", "BC", "ABC")}
    bad = sum(any(together(o, letter) for letter in "ABC") for o in orders)
    return len(orders) - bad, {
        "1": [all(n == math.factorial(7 - len(s)) // 2 ** (3 - len(s)) for s, n in glued.items())],
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
    every = routes(start, end)
    return sum((a in route) != (b in route) for route in every), {
        "1": [len(routes(start, a))],
        "2": [len(routes(a, end))],
        "3": [len(routes(start, b))],
        "4": [len(routes(b, end))],
        "5": [len(routes(a, b))],
        "6": [sum(a in route for route in every)],
        "7": [sum(b in route for route in every)],
        "8": [sum({a, b} <= route for route in every)],
    }


def no_gap_of_three() -> Facts:
    chains = [(1, 4, 7, 10), (2, 5, 8, 11), (3, 6, 9)]
    neighbours = {pair for chain in chains for pair in pairwise(chain)}

    def choices(numbers: tuple[int, ...]) -> int:
        subsets = (set(s) for size in range(len(numbers) + 1) for s in combinations(numbers, size))
        return sum(all(n + 3 not in subset for n in subset) for subset in subsets)

    counts = [choices(tuple(range(0, 3 * k, 3))) for k in range(1, 8)]
    return choices(tuple(range(1, 12))), {
        "1": [{pair for pair in combinations(range(1, 12), 2) if pair[1] - pair[0] == 3} == neighbours],
        "2": [choices(tuple(range(1, 12))) == math.prod(map(choices, chains))],
        "3": [
            f"a_1={counts[0]}",
            f"a_2={counts[1]}",
            all(counts[k] == counts[k - 1] + counts[k - 2] for k in (2, 5, 6)),
        ],
        "4": [f"a_3={counts[2]}"],
        "5": [f"a_4={counts[3]}"],
        "6": [choices(chains[0] + chains[1])],
        "7": [choices(chains[2])],
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
    orbits = {min(images) for images in zip(*turned.values(), strict=True)}
    return len(orbits), {
        "1": [
            len(rotations),
            (len(thirds), len(halves)) == (2, 3),
            all(p[p[k]] == k for p in halves for k in range(6)),
        ],
        "2": [fixed[tuple(range(6))]],
        "3": [fixed[thirds[0]], fixed[thirds[0]] == fixed[thirds[1]], all(p[k] != k for p in thirds for k in range(6))],
        "4": [fixed[halves[0]], len({fixed[p] for p in halves}) == 1, all(p[k] != k for p in halves for k in range(6))],
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
        "1": [sorted(types) == sorted(t for t in map(cycle_lengths, every) if not {1, 2} & set(t))],
        "2": [set(types) == {(7,), (3, 4)}],
        "3": [types.count((7,))],
        "4": [len(list(combinations(range(7), 3)))],
        "5": [f"in ${_full_cycles(3)}$ ways", f"in ${_full_cycles(4)}$ ways"],
        "6": [types.count((3, 4))],
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


def product_twelve() -> Facts:
    products = [math.prod(roll) for roll in product(range(1, 7), repeat=3)]
    return Fraction(sum(p % 12 == 0 for p in products), len(products)), {
        "1": [all((p % 12 != 0) == (p % 3 != 0 or p % 4 != 0) for p in products)],
        "2": [sum(p % 3 != 0 for p in products), len(products)],
        "3": [sum(p % 4 != 0 for p in products), len(products)],
        "4": [sum(p % 3 != 0 and p % 4 != 0 for p in products), len(products)],
        "5": [sum(p % 12 != 0 for p in products), len(products)],
    }


def beetle_on_octahedron() -> Facts:
    """Vertex v is opposite to 5 - v; the beetle starts at 0."""
    adjacent = {v: [w for w in range(6) if w not in (v, 5 - v)] for v in range(6)}
    walks = [[(0,)]]
    for _ in range(5):
        walks.append([(*walk, w) for walk in walks[-1] for w in adjacent[walk[-1]]])
    ring = [Fraction(sum(walk[-1] not in (0, 5) for walk in level), len(level)) for level in walks]
    answer = Fraction(sum(walk[-1] == 5 for walk in walks[5]), len(walks[5]))
    return answer, {
        "1": [adjacent[0] == adjacent[5] == [1, 2, 3, 4], all({0, 5} < set(adjacent[v]) for v in (1, 2, 3, 4))],
        "2": [all(later == 1 - now / 2 for now, later in pairwise(ring))],
        "3": [f"r_1={ring[1]}"],
        "4": [*ring[2:4]],
        "5": [ring[4]],
        "6": [answer == ring[4] / 4],
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
    return answer, {
        "1": [answer == heads * h + tails * t1],
        "2": [h == heads + tails * t1],
        "3": [t1 == heads * h + tails * t2],
        "4": [t2 == heads * h],
        "5": [t1 / h],
        "6": [h],
        "7": [t1],
    }


def even_product() -> Facts:
    pairs = list(combinations(range(1, 21), 2))
    even = [(a, b) for a, b in pairs if a * b % 2 == 0]
    both = [(a, b) for a, b in even if (a + b) % 3 == 0]
    return Fraction(len(both), len(even)), {
        "1": [all((a * b % 2 == 1) == (a % 2 == b % 2 == 1) for a, b in pairs), len(range(1, 21, 2))],
        "2": [len(even)],
        "3": [",".join(str(sum(n % 3 == r for n in range(1, 21))) for r in range(3))],
        "4": [sum((a + b) % 3 == 0 for a, b in pairs)],
        "5": [sum((a + b) % 3 == 0 and a * b % 2 == 1 for a, b in pairs)],
        "6": [len(both)],
    }
