"""Geometry of the example set in exact coordinates; see example_algebra for the form."""

import sympy as sp

from tests.example_formulas import Facts, equation, value


def distance(u, v) -> sp.Expr:
    return sp.sqrt(sum((a - b) ** 2 for a, b in zip(u, v, strict=True)))


def area(u, v, w) -> sp.Expr:
    return sp.Abs((v[0] - u[0]) * (w[1] - u[1]) - (w[0] - u[0]) * (v[1] - u[1])) / 2


def crossing(a, b, c, d) -> tuple[sp.Expr, sp.Expr]:
    s, t = sp.symbols("s t")
    found = sp.solve([a[i] + s * (b[i] - a[i]) - c[i] - t * (d[i] - c[i]) for i in (0, 1)], [s, t])
    return tuple(a[i] + found[s] * (b[i] - a[i]) for i in (0, 1))


def rectangle_cevians() -> Facts:
    a, b, c, e, g = (0, 0), (12, 0), (12, 8), (8, 8), (0, 2)
    p, q = crossing(b, e, a, c), crossing(b, g, a, c)

    def ratios(first, second) -> set[sp.Expr]:
        sides = ((0, 1), (1, 2), (2, 0))
        return {distance(first[i], first[j]) / distance(second[i], second[j]) for i, j in sides}

    share = distance(p, q) / distance(a, c)
    return area(b, p, q), {
        "1": [ratios((c, p, e), (a, p, b)) == {sp.Rational(1, 3)}, "ratio $1:3$"],
        "2": [distance(c, p) / distance(a, c)],
        "3": [ratios((a, q, g), (c, q, b)) == {sp.Rational(1, 4)}, "ratio $1:4$"],
        "4": [distance(a, q) / distance(a, c)],
        "5": [share],
        "6": [area(b, p, q) / area(a, b, c) == share],
        "7": [area(b, p, q) / area(a, b, c)],
    }


def parallel_chords() -> Facts:
    y = sp.symbols("y", positive=True)
    [near], [far] = (sp.solve(half**2 + y**2 - 169, y) for half in (12, 5))
    corners = [(-5, far), (5, far), (12, -near), (-12, -near)]
    sides = [distance(corners[k], corners[(k + 1) % 4]) for k in range(4)]
    return sum(sides), {
        "1": [{(-x, h) for x, h in corners} == set(corners), sides[1] == sides[3], sides[0] != sides[2]],
        "2": [sides[0], f"distance ${far}$"],
        "3": [sides[2], f"distance ${near}$"],
        "4": [f"${far + near}$ apart"],
        "5": [f"${corners[2][0] - corners[1][0]}$ apart"],
        "6": [r"13\sqrt{2}", sides[1] == 13 * sp.sqrt(2)],
    }


def twice_as_far() -> Facts:
    """Extremes of PC on the path, where the tangent is perpendicular to PC."""
    x, y = sp.symbols("x y", real=True)
    path = sp.expand(4 * ((x - 6) ** 2 + y**2) - x**2 - y**2) / 3
    tangency = sp.diff(path, x) * (y - 12) - sp.diff(path, y) * (x - 3)
    extremes = sorted(distance((u, v), (3, 12)) for u, v in sp.solve([path, tangency], [x, y]))
    (u, v), written = sp.symbols("x y"), "x^2+y^2-16x+48"
    centre = tuple(sp.solve([sp.diff(path, x), sp.diff(path, y)], [x, y]).values())
    return extremes[0] * extremes[1], {
        "1": [f"${written}=0$", sp.expand(path.subs({x: u, y: v}) - value(written)) == 0],
        "2": [f"centre $({centre[0]},{centre[1]})$"],
        "3": [f"radius ${sp.sqrt(-path.subs(dict(zip((x, y), centre, strict=True))))}$"],
        "4": [f"distance ${distance(centre, (3, 12))}$"],
        "5": [f"is ${extremes[1]}$"],
        "6": [f"is ${extremes[0]}$"],
    }


def ball_in_pyramid() -> Facts:
    """The centre (0, 0, r) is as far from the plane 12x + 5z = 60 of a side as from the base."""
    r, z = sp.symbols("r z", positive=True)
    [radius] = [v for v in sp.solve((60 - 5 * r) ** 2 - (13 * r) ** 2, r) if v < 12]
    altitude = distance((0, 0, 12), (5, 0, 0))
    lateral = 4 * altitude * 10 / 2
    volume = sp.integrate((10 * (12 - z) / 12) ** 2, (z, 0, 12))
    return radius, {
        "1": [altitude],
        "2": [lateral],
        "3": [lateral + 100],
        "4": [volume],
        "5": [r"$\frac{1}{3}Sr$", value(r"\frac{1}{3}Sr", S=lateral + 100, r=radius) == volume],
        "6": [equation("120r=400", {"r": radius})],
    }


def two_centres() -> Facts:
    x, y = sp.symbols("x y")
    a, b, c = (0, 0), (5, 0), (4, 4 * sp.sqrt(3))
    [(ox, oy)] = sp.linsolve([sp.expand(distance((x, y), p) ** 2 - x**2 - y**2) for p in (b, c)], x, y)
    weights = [distance(b, c), distance(c, a), distance(a, b)]
    incentre = tuple(sum(w * p[i] for w, p in zip(weights, (a, b, c), strict=True)) / sum(weights) for i in (0, 1))
    circumradius, inradius = sp.sqrt(sp.simplify(ox**2 + oy**2)), incentre[1]
    gap = distance((ox, oy), incentre)
    radii = {"R": circumradius, "r": inradius}
    return sp.simplify(gap**2), {
        "1": [f"BC={weights[0]}"],
        "2": [r"10\sqrt{3}", sp.simplify(area(a, b, c) - 10 * sp.sqrt(3)) == 0],
        "3": [sum(weights) / 2],
        "4": [r"r=\sqrt{3}", sp.simplify(inradius - sp.sqrt(3)) == 0],
        "5": [r"R=\frac{7\sqrt{3}}{3}", sp.simplify(circumradius - 7 * sp.sqrt(3) / 3) == 0],
        "6": [
            "OI^2=R(R-2r)",
            sp.simplify(value("R(R-2r)", **radii) - gap**2) == 0,
            equation(r"R-2r=\frac{\sqrt{3}}{3}", radii),
        ],
    }
