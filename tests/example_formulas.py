"""Formulas of the example set, checked as they are written there."""

from fractions import Fraction

import sympy as sp
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig

Facts = tuple[object, dict[str, list[object]]]


def literal(value: object) -> str:
    """How a computed value is written in the data."""
    if isinstance(value, Fraction | sp.Rational) and value.denominator != 1:
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    return str(value)


def value(latex: str, **known: object) -> sp.Expr:
    """The expression with the symbols of `known` replaced; `R` and `r` are two symbols."""
    parsed = latex2sympy(latex, conversion_config=ConversionConfig(lowercase_symbols=False))
    return parsed.subs({s: known[s.name] for s in parsed.free_symbols if s.name in known}).doit()


def equation(latex: str, *cases: dict[str, object]) -> str:
    """`latex` itself, after a check that it holds in every case; without a case, that it is an identity."""
    left, right = latex.split("=")
    for case in cases or ({},):
        gap = sp.simplify(value(left, **case) - value(right, **case))
        assert gap == 0, f"{latex} is off by {gap} for {case}"
    return latex


def congruence(modulus: str, left: str, right: str) -> str:
    """`$left$ is congruent to $right$`, after a check modulo a polynomial in x."""
    x = sp.Symbol("x")
    assert sp.expand(sp.rem(value(left) - value(right), value(modulus), x)) == 0
    return f"${left}$ is congruent to ${right}$"
