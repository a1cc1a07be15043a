"""Words, names, wrappings and degree signs."""

from __future__ import annotations

from tests.grading.answers import Answer, Dice, kind, two


@kind
def wrappings(dice: Dice) -> Answer:
    number = dice.randint(10, 999)
    same = [
        f"{number}\\",
        f"\\text{{{number}}}\\",
        f"{number}.\\",
        f" {number}\\ ",
        f"\\mathbf{{{number}}}",
        f"\\({number}\\)",
        f"\\textbf{{({number})}}",
        f"${number}$\\",
    ]
    same += [
        f"\\text{{Answer: }}{number}",
        f"\\displaystyle {number}",
        f"{{{number}}}",
        f"\\large{{{number}}}",
        f"\\underline{{{number}}}",
        f"\\bf {number}",
        f"\\color{{blue}}{{{number}}}",
    ]
    return Answer(
        str(number),
        same,
        [
            f"{number}0",
            f"-{number}",
            f"{number}!",
            f"{number}^2",
            f"\\frac{{1}}{{{number}}}",
            f"\\sqrt{{{number}}}",
            f"\\leq {number}",
            f"\\pm {number}",
        ],
    )


@kind
def words(dice: Dice) -> Answer:
    answers = [
        "yes",
        "no",
        "east",
        "true",
        "odd",
        "even",
        "blue",
        "Monday",
        "neither",
        "Alice",
        "no winner",
        "all real numbers",
        "right triangle",
    ]
    word, wrong = dice.sample(answers, 2)
    gold = dice.choice(
        [word, f"\\text{{{word}}}", f"\\text{{{word.capitalize()}}}", f"\\mathrm{{{word}}}".replace(" ", "~")]
    )
    same = [
        word,
        f"\\text{{{word}}}",
        f"\\textbf{{{word}}}",
        word.upper(),
        f"\\text{{{word}.}}",
        f"\\text{{ {word.capitalize()}}}",
        f"\\mbox{{{word}}}",
        f"\\textit{{{word}}}",
        f'\\text{{"{word}"}}',
    ]
    letters = sorted(word)
    return Answer(
        gold,
        same,
        [
            f"\\text{{{wrong}}}",
            wrong,
            f"\\text{{not {word}}}",
            f"\\text{{{word}s}}",
            f"\\text{{{word} or {wrong}}}",
            "\\text{" + "".join(letters if letters != list(word) else letters[::-1]) + "}",
        ],
    )


@kind
def choices(dice: Dice) -> Answer:
    letter, wrong = dice.sample("ABCDE", 2)
    forms = [
        f"\\text{{({letter})}}",
        letter,
        f"\\textbf{{({letter})}}",
        f"({letter})",
        f"\\text{{{letter}}}",
        f"\\mathrm{{{letter}}}",
        f"\\textbf{{({letter})}}\\",
    ]
    return Answer(
        dice.choice(forms[:4]), forms, [wrong, f"\\text{{({wrong})}}", f"\\textbf{{{wrong}}}", letter + wrong]
    )


@kind
def short_names(dice: Dice) -> Answer:
    p, q = dice.sample("abcdmnpqrstuvxyz", 2)
    gold, same, other = dice.choice(
        [
            (
                f"{p} - {q}",
                [f"-{q}+{p}", f"{p}-{q}", f"-({q}-{p})"],
                [f"{q} - {p}", f"{p} + {q}", f"\\text{{{p}{q}}}-1"],
            ),
            (f"{p}{q}", [f"{q}{p}", f"{p} {q}", f"{p}\\cdot {q}", f"{q} \\times {p}"], [f"{p}+{q}", f"{p}{p}{q}", p]),
            (f"2{p}{q}+{p}+{q}", [f"{p}+{q}+2{q}{p}", f"{p}(1+2{q})+{q}"], [f"{p}{q}+{p}+{q}", f"2{p}{q}"]),
            (
                f"\\frac{{{p}}}{{{q}}}",
                [f"{p}/{q}", f"{p}{q}^{{-1}}", f"\\frac{{2{p}}}{{2{q}}}"],
                [f"{q}/{p}", f"\\frac{{{p}}}{{{q}^2}}"],
            ),
        ]
    )
    return Answer(gold, same, other)


@kind
def names(dice: Dice) -> Answer:
    value = dice.choice([str(dice.randint(2, 99)), "\\sqrt{7}", "\\frac{3}{7}", "2\\pi"])
    name, wrong = dice.sample("abkmnpxyz", 2)
    same = [
        value,
        f"{name}={value}",
        f"{value} = {name}",
        f"${name} = {value}$",
        f"{name}_1 = {value}",
        f"{name} \\approx {value}",
        f"{name}_{{\\max}} = {value}",
    ]
    gold = dice.choice([value, f"{name}={value}", f"{name} = {value}"])
    miss = [
        f"{name}=-{value}",
        f"{name} = {value} + 1",
        f"{name} < {value}",
        f"{name} \\ge {value}",
        name,
        f"{name} \\ne {value}",
    ]
    return Answer(gold, same, miss + ([f"{wrong}={value}"] if "=" in gold else []))


@kind
def functions(dice: Dice) -> Answer:
    a, b = two(dice, 2, 9)
    name, t = dice.choice("fgh"), dice.choice("tyz")
    gold, rule, turned = dice.choice(
        [
            (f"{a}x+{b}", f"{a}{t}+{b}", f"{b}+{a}\\cdot x"),
            (f"{a}x", f"{a}{t}", f"x \\cdot {a}"),
            (f"\\frac{{x^2}}{{{a}}}-{b}", f"\\frac{{{t}^2}}{{{a}}}-{b}", f"-{b}+\\frac1{{{a}}}x^2"),
        ]
    )
    same = [
        gold,
        f"{name}(x)={gold}",
        f"{name}({t})={rule}",
        f"{name}(x) = {turned}",
        f"{gold} = {name}(x)",
        f"{name}({t}) = {rule}\\text{{ for all }} {t}",
    ][:5]
    other = [
        f"{name}(x)={gold}+1",
        f"{name}({t})=-({rule})",
        f"{name}(x)={rule}",
        f"{name}(x)=2({gold})",
        f"{name}({t}) = {gold}",
    ]
    return Answer(f"{name}(x) = {gold}", same, other)


@kind
def degrees(dice: Dice) -> Answer:
    angle = dice.randint(10, 170)
    forms = [
        str(angle),
        f"{angle}^\\circ",
        f"{angle}\u00b0",
        f"{angle}^{{\\circ}}",
        f"{angle}\\degree",
        f"{angle}\\text{{ degrees}}",
        f"\\theta = {angle}^\\circ",
        f"\\angle ABC = {angle}^\\circ",
    ]
    return Answer(
        f"{angle}^\\circ",
        forms,
        [
            f"{angle + 1}^\\circ",
            f"{angle}\\pi",
            f"\\frac{{{angle}\\pi}}{{180}}",
            f"{180 - angle if angle != 90 else 91}^\\circ",
        ],
    )
