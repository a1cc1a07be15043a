"""Algebra and sequences of the example set, computed by search or exact algebra, not along the written solutions.

Each function returns the answer and what each checkpoint must be true of: a `bool` is a fact that was checked here,
anything else must occur literally in the statement.
"""

from fractions import Fraction
from itertools import count, islice
from math import comb, isqrt

import sympy as sp

from tests.example_formulas import Facts, congruence, equation, value


def seventh_powers() -> Facts:
    root_a, root_b = 3 + sp.sqrt(2), 3 - sp.sqrt(2)
    sums = {k: sp.expand(root_a**k + root_b**k) for k in range(1, 8)}
    assert (sums[1], sums[3]) == (6, 90)
    ab = sp.expand(root_a * root_b)
    roots = {"a": root_a, "b": root_b}
    return sums[7], {
        "1": [f"ab={ab}"],
        "2": [f"a^2+b^2={sums[2]}"],
        "3": [f"a^4+b^4={sums[4]}"],
        "4": [equation("(a^3+b^3)(a^4+b^4)=a^7+b^7+(ab)^3(a+b)")],
        "5": [equation("a^7+b^7=34740-(ab)^3(a+b)", roots)],
        "6": [equation("(ab)^3(a+b)=2058", roots)],
    }


def two_remainders() -> Facts:
    x = sp.Symbol("x")
    c = sp.symbols("c0:4")
    cubic = sum(c[k] * x**k for k in range(4))
    wanted = [sp.rem(cubic, x**2 + 1, x) - 2 * x - 1, sp.rem(cubic, x**2 + x + 1, x) - x - 5]
    solution = sp.solve([coefficient for r in wanted for coefficient in sp.Poly(r, x).coeffs()], c)
    found = sp.Poly(cubic.subs(solution), x)
    quotient = sp.quo(found.as_expr() - 2 * x - 1, x**2 + 1, x)
    coefficients = {"a": quotient.coeff(x, 1), "b": quotient.coeff(x, 0)}
    form = "2x+1+(x^2+1)(ax+b)"
    assert sp.expand(value(form, **coefficients) - found.as_expr()) == 0
    modulus = "x^2+x+1"
    return found.eval(3), {
        "1": [f"$R(x)={form}$"],
        "2": [f"Modulo ${modulus}$", congruence(modulus, "x^2+1", "-x")],
        "3": [f"Modulo ${modulus}$", congruence(modulus, "(x^2+1)(ax+b)", "(a-b)x+a")],
        "4": [
            f"$R(x)={form}$",
            f"$-x+4$ modulo ${modulus}$",
            sp.rem((x**2 + 1) * quotient - value("-x+4"), value(modulus), x) == 0,
        ],
        "5": [f"$R(x)={form}$", f"a={coefficients['a']}", f"b={coefficients['b']}"],
        "6": ["$R(x)=4x^3+5x^2+6x+6$", sp.expand(value("4x^3+5x^2+6x+6") - found.as_expr()) == 0],
    }


def three_products() -> Facts:
    x, y, z = sp.symbols("x y z", positive=True)
    [(u, v, w)] = sp.solve([x * (y + z) - 27, y * (z + x) - 22, z * (x + y) - 25], [x, y, z])
    return sp.simplify(u + v + w), {
        "1": [f"={sp.simplify(u * v + v * w + w * u)}$"],
        "2": [f"yz={sp.simplify(v * w)}"],
        "3": [f"zx={sp.simplify(w * u)}"],
        "4": [f"xy={sp.simplify(u * v)}"],
        "5": [f"x^2={sp.simplify(u**2)}"],
        "6": [f"y^2={sp.simplify(v**2)}"],
        "7": [r"z^2=\frac{25}{2}", sp.simplify(w**2) == sp.Rational(25, 2)],
        "8": [equation(r"x^2+y^2+z^2=\frac{77}{2}", {"x": u, "y": v, "z": w})],
    }


def mutual_logarithms() -> Facts:
    a, b = sp.symbols("a b", positive=True)  # x = 2^a, y = 2^b
    pairs = sp.solve([b / a + a / b - sp.Rational(17, 4), 2 * a + b - 18], [a, b])
    values = sorted((2**u, 2**v) for u, v in pairs)
    logarithms = [{"t": b_ / a_} for a_, b_ in pairs]
    return sum(u + v for u, v in values), {
        "1": [equation("4t^2-17t+4=0", *logarithms)],
        "2": [all(v == u**4 or u == v**4 for u, v in values), "$y=x^4$ or $x=y^4$"],
        "3": [f"x={values[0][0]}$", f"y={values[0][1]}$", equation("y=x^4", dict(zip("xy", values[0], strict=True)))],
        "4": [f"x={values[1][0]}$", f"y={values[1][1]}$", equation("x=y^4", dict(zip("xy", values[1], strict=True)))],
        "5": [len(values) == 2, *(u + v for u, v in values)],
    }


def extreme_values() -> Facts:
    """Generalised eigenvalues of the two quadratic forms."""
    x, y, k = sp.symbols("x y k", real=True)
    constraint, form = x**2 + x * y + y**2, 3 * x**2 - x * y + 3 * y**2
    low, high = sorted(12 * v for v in sp.solve(sp.det(sp.hessian(form - k * constraint, [x, y])), k))

    def at(u, v):
        point = {x: u, y: v}
        return constraint.subs(point), form.subs(point), u * v

    return low * high, {
        "1": ["x^2+y^2=12-p", sp.expand(value("x^2+y^2-12+p", p=x * y, x=x, y=y) - constraint + 12) == 0],
        "2": ["$3x^2-xy+3y^2$", f"${3 * 12}-4p$", sp.expand(form - 3 * constraint + 4 * x * y) == 0],
        "3": [at(2, 2) == (12, low, 4), r"p\le 4$", "x=y=2$"],
        "4": [at(2 * sp.sqrt(3), -2 * sp.sqrt(3)) == (12, high, -12), r"p\ge -12$", r"x=-y=2\sqrt{3}$"],
        "5": [f"m={low}"],
        "6": [f"M={high}"],
    }


def circling_fractions() -> Facts:
    terms = [Fraction(3)]
    while len(terms) < 2026:
        terms.append((1 + terms[-1]) / (1 - terms[-1]))
    return sum(terms), {
        "1": [f"a_2={terms[1]}"],
        "2": [r"a_3=-\frac{1}{3}", terms[2] == Fraction(-1, 3)],
        "3": [r"a_4=\frac{1}{2}", terms[3] == Fraction(1, 2)],
        "4": [terms[4:] == terms[:-4], len(set(terms)) == 4, "period $4$", f"a_5={terms[4]}=a_1"],
        "5": [equation(r"a_1+a_2+a_3+a_4=\frac{7}{6}", {f"a_{k}": sp.Rational(terms[k - 1]) for k in range(1, 5)})],
        "6": ["{}\\cdot {}+{}".format(4, *divmod(2026, 4))],
        "7": [sum(terms[:2024]), 4 * 506],
        "8": [f"$2025$ and $2026$ have the sum ${sum(terms[2024:])}$"],
    }


def two_progressions() -> Facts:
    d, r = sp.symbols("d r")
    solutions = sp.solve([2 + 2 * d - 2 * r, 2 + 10 * d - 2 * r**2], [d, r])
    [(step, ratio)] = [pair for pair in solutions if pair[0] != 0]
    both, sixth = {"d": step, "r": ratio}, 2 * ratio**5
    index = next(k for k in count(1) if 2 + step * (k - 1) == sixth)
    return index, {
        "1": [equation("r=1+d", both), "a_3=b_2", 2 + 2 * step == 2 * ratio],
        "2": [equation("r^2=1+5d", both), "a_{11}=b_3", 2 + 10 * step == 2 * ratio**2],
        "3": [f"d={step}"],
        "4": [f"r={ratio}"],
        "5": [f"b_6={sixth}"],
        "6": [equation("a_k=3k-1", *({"a_k": 2 + step * (k - 1), "k": k} for k in range(1, 20)))],
    }


def squared_digit_sums() -> Facts:
    ones = [n.bit_count() for n in range(256)]
    formula = r"\sum_{k=0}^{8}\left(k(k-1)+k\right)\binom{8}{k}"
    return sum(s * s for s in ones), {
        "1": [all(ones.count(k) == comb(8, k) for k in range(9)), r"from $0$ to $255$ exactly $\binom{8}{k}$"],
        "2": [formula, value(formula) == sum(s * s for s in ones)],
        "3": [equation(r"k(k-1)\binom{8}{k}=56\binom{6}{k-2}", *({"k": k} for k in range(2, 9))), r"k\ge 2$"],
        "4": [equation(r"k\binom{8}{k}=8\binom{7}{k-1}", *({"k": k} for k in range(1, 9))), r"k\ge 1$"],
        "5": [r"k(k-1)\binom{8}{k}$ with $0\le k\le 8$", sum(s * (s - 1) for s in ones)],
        "6": [r"terms $k\binom{8}{k}$ with $0\le k\le 8$", sum(ones)],
    }


def struck_numbers() -> Facts:
    def struck(n: int) -> bool:
        return n % 3 == 0 or isqrt(n) ** 2 == n

    def left_up_to(n: int) -> int:
        return sum(not struck(m) for m in range(1, n + 1))

    formula = r"N-\lfloor N/3\rfloor-\lfloor\sqrt{N}\rfloor+\lfloor\sqrt{N}/3\rfloor"
    whole, among = range(1, 163), r"among $1,\dots,162$"
    squares = [n for n in whole if isqrt(n) ** 2 == n]
    return sum(islice((n for n in count(1) if not struck(n)), 100)), {
        "1": [formula, all(left_up_to(n) == value(formula, N=n) for n in range(1, 50))],
        "2": [left_up_to(162), among],
        "3": [sum(whole), "integers " + among.removeprefix("among ")],
        "4": ["multiples of $3$", sum(n for n in whole if n % 3 == 0), among],
        "5": [sum(squares), among],
        "6": ["multiples of $3$", sum(n for n in squares if n % 3 == 0), among],
        "7": [sum(n for n in whole if struck(n)), among],
    }
