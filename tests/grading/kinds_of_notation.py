"""Notations that mean the same: repeating decimals, conditions in braces, roots and functions without a backslash."""

from __future__ import annotations

from fractions import Fraction

from tests.grading.answers import Answer, Dice, kind, two


@kind
def repeating_decimals(dice: Dice) -> Answer:
    whole, fixed = dice.randint(0, 9), dice.choice(["", "0", "1", "25"])
    again = str(dice.choice([3, 27, 36, 135, 571428]))
    value = Fraction(int(f"{whole}{fixed}{again}") - int(f"{whole}{fixed}"), (10 ** len(again) - 1) * 10 ** len(fixed))
    bar = f"{whole}.{fixed}\\overline{{{again}}}"
    turned = again[1:] + again[0]
    same = [
        f"\\frac{{{value.numerator}}}{{{value.denominator}}}",
        f"{value.numerator}/{value.denominator}",
        f"{whole}.{fixed}{again}\\overline{{{again}}}",
        f"{whole}.{fixed}{again[0]}\\overline{{{turned}}}",
        f"{whole}.{fixed}\\bar{{{again}}}",
        f"{whole}.{fixed}({again})",
        f"x = {bar}",
    ]
    other = [
        f"{whole}.{fixed}{again}",
        f"-{bar}",
        f"{whole}.{fixed}\\overline{{{again}1}}",
        f"{bar}\\pi",
        bar[1:] + "1",
    ]
    return Answer(dice.choice([bar, same[0]]), [*same, bar], other)


@kind
def zero(dice: Dice) -> Answer:
    """The one number that is its own negative; and no set without members."""
    forms = ["0", "\\pm 0", "x = \\pm 0", "\u00b10", "\\mp 0", "-0", "0.0", "\\{0\\}", "\\frac{0}{7}"]
    number = dice.randint(1, 9)
    other = [
        f"\\pm {number}",
        "\\emptyset",
        "\\{\\}",
        "\\text{no solution}",
        f"\\{{0, {number}\\}}",
        "\\{\\emptyset\\}",
    ]
    return Answer(dice.choice(forms[:3]), forms, other)


@kind
def named_sets(dice: Dice) -> Answer:
    reals = [
        "\\mathbb{R}",
        "\\mathbb R",
        "\\Bbb{R}",
        "\\text{all real numbers}",
        "\\text{All reals}",
        "(-\\infty,\\infty)",
    ]
    empty = ["\\emptyset", "\\varnothing", "\\{\\}", "\\text{no solution}", "\\text{the empty set}", "\u2205"]
    empty += ["\\text{no real solutions}", "\\text{There are no solutions.}", "\\text{No solution exists}"]
    forms, other = dice.choice([(reals, empty[:3]), (empty, reals[:3])])
    miss = ["\\{\\emptyset\\}", "\\mathbb{Z}", "\\{0\\}", "[0, \\infty)", "\\mathbb{R} \\setminus \\{0\\}", "R"]
    return Answer(dice.choice(forms), forms, [*other, *miss])


@kind
def conditions_in_braces(dice: Dice) -> Answer:
    p, q = sorted(two(dice))
    t = dice.choice("xtyz")
    gold, condition, near = dice.choice(
        [
            (f"[{p},{q})", f"{p} \\le {t} < {q}", f"{p} < {t} < {q}"),
            (f"(-\\infty,{p}) \\cup ({q},\\infty)", f"{t} < {p} \\text{{ or }} {t} > {q}", f"{t} < {p}, {t} \\ge {q}"),
            (f"\\mathbb{{R}} \\setminus \\{{{p}\\}}", f"{t} \\neq {p}", f"{t} \\neq {q}"),
            (f"\\mathbb{{R}} \\setminus \\{{{p}, {q}\\}}", f"{t} \\neq {q}, {p}", f"{t} \\neq {p}, {q}, 0"),
        ]
    )
    signs = ["\\mid", "|", ":", "\\in \\mathbb{R} \\mid", "\\in \\mathbb R : "]
    same = [f"\\{{{t} {sign} {condition}\\}}" for sign in signs] + [f"\\lbrace {t} \\,|\\, {condition} \\rbrace"]
    same.append(condition)
    other = [near, *(f"\\{{{t} {sign} {near}\\}}" for sign in signs[:3])]
    other += [f"\\{{w \\mid {condition}\\}}", f"\\{{{t} \\in \\mathbb{{Z}} \\mid {condition}\\}}"]
    return Answer(gold, same, other)


@kind
def rounding_brackets(dice: Dice) -> Answer:
    a, b = two(dice, 2, 5)
    up, down = (f"\\lceil \\frac{{n}}{{{a}}} \\rceil", f"\\lfloor \\frac{{n}}{{{a}}} \\rfloor")
    gold, turned, other = dice.choice([(down, "\\lfloor", up), (up, "\\lceil", down)])
    end = turned.replace("l", "r", 1)
    same = [
        f"{turned} n/{a} {end}",
        f"\\left{turned} \\dfrac{{n}}{{{a}}} \\right{end}",
        f"{turned} \\frac{{2n}}{{{2 * a}}} {end}",
    ]
    return Answer(gold, same, [other, f"{turned} n/{b} {end}", f"n/{a}", f"{turned} n {end}/{a}", f"{gold} + 1"])


@kind
def plain_text(dice: Dice) -> Answer:
    a, b = two(dice, 2, 9)
    gold, same, other = dice.choice(
        [
            (f"{a}\\pi", [f"{a}pi", f"{a} pi", f"pi*{a}", f"{2 * a}*pi/2"], [f"{b}pi", f"{a}pi^2", f"{a}+pi"]),
            (
                f"{a}\\sqrt{{7}}",
                [f"{a}sqrt(7)", f"{a}*sqrt(7)", f"sqrt({7 * a * a})"],
                [f"sqrt({7 * a})", f"{b}sqrt(7)"],
            ),
            (f"\\sin {a}x", [f"sin({a}x)", f"sin({a}*x)"], [f"sin({b}x)", f"cos({a}x)", f"{a}sin(x)"]),
            (f"\\ln {a}+x", [f"ln({a})+x", f"x+ln {a}"], [f"ln({b})+x", f"ln({a}+x)"]),
            (
                f"\\log_{{{a}}}{b}3",
                [f"\\log_{{{a * a}}}{{({b}3)^2}}", f"\\log_{a}({b}3)"],
                [f"\\log_{{{b}}}{a}3", f"\\log {b}3"],
            ),
        ]
    )
    return Answer(gold, same, other)


@kind
def selections(dice: Dice) -> Answer:
    n, k = dice.randint(8, 12), dice.randint(2, 3)
    same = [f"{{{n} \\choose {k}}}", f"{{}}_{{{n}}}C_{{{k}}}", f"^{{{n}}}C_{k}", f"{{}}_{{{n}}}\\mathrm{{C}}_{k}"]
    same += [
        f"\\frac{{{{}}_{{{n}}}P_{{{k}}}}}{{{k}!}}",
        f"C({n}, {k})",
        f"C_{{{n}}}^{{{k}}}",
        f"\\frac{{P({n},{k})}}{{{k}!}}",
    ]
    other = [f"C({n}, {k + 1})", f"({n}, {k})", f"P({n}, {k})", f"C_{{{n}}}^{{{k + 1}}}"]
    other += [f"{{{n} \\choose {k + 1}}}", f"{{}}_{{{n}}}P_{{{k}}}", f"{{{k} \\choose {n}}}", f"\\frac{{{n}}}{{{k}}}"]
    return Answer(f"\\binom{{{n}}}{{{k}}}", same, other)


@kind
def vectors(dice: Dice) -> Answer:
    p, q = two(dice)
    same = [
        f"\\langle {p}, {q} \\rangle",
        f"\\left\\langle {p},{q} \\right\\rangle",
        f"\\begin{{pmatrix}} {p} \\cr {q} \\end{{pmatrix}}",
    ]
    other = [
        f"\\langle {q}, {p} \\rangle",
        f"\\langle {p}, {q}, 0 \\rangle",
        f"\\lbrack {p}, {q} \\rbrack",
        f"\\lbrace {p}, {q} \\rbrace",
    ]
    return Answer(f"({p}, {q})", same, other)


@kind
def systems_in_a_brace(dice: Dice) -> Answer:
    p, q = two(dice)
    lines = f"x = {p} \\\\ y = {q}"
    same = [
        f"\\left\\{{\\begin{{array}}{{l}} {lines} \\end{{array}}\\right.",
        f"\\left\\{{ \\begin{{aligned}} x &= {p} \\\\ y &= {q} \\end{{aligned}} \\right.",
        f"\\begin{{cases}} {lines} \\end{{cases}}",
    ]
    return Answer(
        f"({p},{q})",
        same,
        [text.replace(f"y = {q}", f"y = {q + 1}").replace(f"x &= {p}", f"x &= {q}") for text in same],
    )


@kind
def minutes_of_arc(dice: Dice) -> Answer:
    degrees, minutes = dice.randint(10, 89), dice.choice([6, 12, 15, 30, 45])
    decimal = f"{degrees + minutes / 60:.2f}".rstrip("0")
    same = [
        f"{degrees}^\\circ {minutes}'",
        f"{degrees}^{{\\circ}}{minutes}^{{\\prime}}",
        f"{decimal}^\\circ",
        f"{decimal}^{{o}}",
    ]
    same += [f"{degrees}\u00b0{minutes}'0''"]
    return Answer(
        dice.choice(same),
        same,
        [f"{degrees}^\\circ", f"{degrees}^\\circ {minutes + 1}'", f"{degrees}.{minutes}^\\circ 1'", f"{decimal}'"],
    )


@kind
def counted_things(dice: Dice) -> Answer:
    number = dice.randint(2, 99)
    thing = dice.choice(["ways", "marbles", "students in all", "integers"])
    same = [
        f"\\text{{{number} {thing}}}",
        f"{number}\\text{{ {thing}}}",
        f"= {number}",
        f"\\text{{\\${number}}}",
        f"\\textsf{{{number}}}",
    ]
    other = [
        f"\\text{{{number} or more {thing}}}",
        f"\\text{{{number} hundred}}",
        f"\\text{{{number + 1} {thing}}}",
        f"\\text{{{number} to 1}}",
    ]
    return Answer(str(number), same, other)


@kind
def letters(dice: Dice) -> Answer:
    """A capital is another letter."""
    x = dice.choice("rstkmn")
    gold, same, near = dice.choice(
        [
            (f"3{x}^2", f"{x}\\cdot 3{x}", f"3{x.upper()}^2"),
            (f"2{x}+c", f"c+2{x}", f"2{x.upper()}+c"),
            (f"{x}{x.upper()}", f"{x.upper()}{x}", f"{x}^2"),
        ]
    )
    return Answer(gold, [same, f"{gold} \\text{{ for all }} {x} > 0"], [near, near.upper()])


@kind
def products_without_a_sign(dice: Dice) -> Answer:
    a, b = two(dice, 3, 30)
    same = [
        f"{a}({b})",
        f"({a})({b})",
        f"({a}){b}",
        f"{a}\\left({b}\\right)",
        f"\\frac{{{a}}}{{2}}({2 * b})",
        f"{a}[{b}]",
    ]
    sums = [f"{a}+{b}", f"({a})+({b})", f"{a} {b}", f"{a}{b}"]
    return dice.choice([Answer(str(a * b), same, sums), Answer(str(a + b), sums[:2], same)])


@kind
def roots_with_an_index(dice: Dice) -> Answer:
    a, b = two(dice)
    gold = dice.choice([f"x={a}, x={b}", f"{a}, {b}", f"\\{{{a}, {b}\\}}"])
    same = [f"x_1={a}, x_2={b}", f"x_1={b}, x_2={a}", f"x_{{1}} = {b} \\text{{ and }} x_{{2}} = {a}"]
    return Answer(gold, same, [f"x_1={a}, x_2={b + 1}", f"x_1={a}", f"x={b}, y={a + 1}"])


@kind
def dates(dice: Dice) -> Answer:
    month, day = dice.choice(["June", "March", "October"]), dice.randint(2, 28)
    same = [
        f"{month} {day}",
        f"\\text{{{month.lower()} {day}}}",
        f"\\text{{{month} }}{day}",
        f"\\text{{{month} {day}.}}",
    ]
    return Answer(
        f"\\text{{{month} {day}}}", same, [f"\\text{{{month} {day + 1}}}", str(day), f"\\text{{May {day}}}", month]
    )


@kind
def units(dice: Dice) -> Answer:
    n = dice.randint(3, 60)
    value = dice.choice([f"{n}", f"{n}\\pi", f"{n}\\sqrt{{3}}", f"\\frac{{{n}}}{{7}}"])
    same = [
        value,
        f"{value}\\text{{ cm}}^2",
        f"{value}~cm^2",
        f"{value}\\,\\mathrm{{cm}}^2",
        f"{value} \\text{{ square centimeters}}",
        f"A = {value} \\text{{ cm}}^{{2}}",
    ]
    other = [f"{value}\\text{{ cm}}^3", f"{value} \\text{{ m}}^2", f"{value}^2", f"{value} cm", f"2 \\cdot {value}"]
    return Answer(f"{value} \\text{{ cm}}^2", same, other)


@kind
def money(dice: Dice) -> Answer:
    n = dice.randint(3, 60)
    same = [f"{n}.00", f"\\${n}", f"{n} \\text{{ dollars}}", f"\\text{{\\${n}}}", f"\\${n}.00"]
    return Answer(
        f"\\${n}", same, [f"{n} \\text{{ cents}}", f"\u20ac{n}", f"{n}\\text{{ cm}}", f"\\${n}.50", f"{n}\\%"]
    )


@kind
def products_of_functions(dice: Dice) -> Answer:
    p, q = two(dice)
    t = dice.choice("xyt")
    gold, *forms = dice.choice(
        [
            (
                f"\\ln {p} \\cdot \\ln {q}",
                f"\\ln {q} \\cdot \\ln {p}",
                f"\\ln({p})\\ln({q})",
                f"\\ln({p} \\cdot \\ln {q})",
            ),
            (f"\\sin^2 {t}", f"\\sin {t} \\cdot \\sin {t}", f"(\\sin {t})^2", f"\\sin({t} \\cdot \\sin {t})"),
            ("3", f"\\log_{{{p}}} {q} \\times \\log_{{{q}}} {p**3}", f"\\log_{{{p}}} {p**3}", f"\\log_{{{p}}} {p**2}"),
            (f"{q} \\cos {p}{t}", f"\\cos {p}{t} \\cdot {q}", f"\\cos({p}{t}) \\cdot {q}", f"\\cos({p}{t} \\cdot {q})"),
        ]
    )
    return Answer(gold, forms[:-1], forms[-1:])
