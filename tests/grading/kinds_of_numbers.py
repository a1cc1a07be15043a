"""Numbers: their digits, bases, units and closed forms."""

from __future__ import annotations

from tests.grading.answers import Answer, Dice, grouped, kind, two

SEPARATORS = (",", "{,}", "\\,", "\\ ", " ", "~", "\u2009", "\u202f", "\u00a0", ",\\!", ",\\! ", "{,} ", "\\;")


IDENTITIES = (
    (
        "\\sin^2 x",
        ["1-\\cos^2 x", "\\frac{1-\\cos 2x}{2}", "1-\\cos^{2}(x)", "(\\sin x)^2"],
        ["1-\\cos x", "\\sin x^2", "\\cos^2 x", "\\sin 2x"],
    ),
    ("2\\sin x\\cos x", ["\\sin 2x", "\\sin(2x)", "2\\cos x \\sin x"], ["\\sin x", "\\cos 2x", "2 \\sin x"]),
    (
        "\\tan x",
        ["\\frac{\\sin x}{\\cos x}", "\\frac{1}{\\cot x}", "\\sec x \\sin x"],
        ["\\cot x", "\\sin x", "\\frac{\\cos x}{\\sin x}"],
    ),
    (
        "\\cos 20^\\circ",
        ["\\sin 70^\\circ", "\\sin(90^\\circ - 20^\\circ)", "\\cos\\frac{\\pi}{9}", "\\cos(20^{\\circ})"],
        ["\\cos 20", "\\sin 20^\\circ", "\\sin 70", "\\cos 70^\\circ"],
    ),
    (
        "\\sin 20^\\circ",
        ["\\cos 70^\\circ", "\\sin\\left(\\frac{\\pi}{9}\\right)", "\\sin 20\u00b0", "\\sin 160^\\circ"],
        ["\\sin 20", "\\sin 200^\\circ", "\\cos 20^\\circ"],
    ),
    (
        "\\arctan 2",
        ["\\tan^{-1} 2", "\\arctan(2)", "\\frac{\\pi}{2}-\\arctan\\frac{1}{2}"],
        ["\\tan 2", "\\arctan 3", "\\frac{1}{\\tan 2}"],
    ),
    (
        "\\frac{\\sqrt{3}}{2}",
        ["\\sin 60^\\circ", "\\cos 30^\\circ", "\\sin\\frac{\\pi}{3}"],
        ["\\sin 60", "\\sin 30^\\circ"],
    ),
    ("\\sin(90^\\circ - x)", ["\\cos x", "\\cos(x)", "\\cos(-x)"], ["\\sin x", "\\cos 2x"]),
)


BASES = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}


@kind
def digit_groups(dice: Dice) -> Answer:
    number = dice.randrange(1000, 10 ** dice.randint(4, 10))
    same = [grouped(number, separator) for separator in SEPARATORS]
    text = str(number)
    other = [
        grouped(number + 1, dice.choice(SEPARATORS)),
        grouped(number * 10, ","),
        text[:-1],
        f"{text[:-2]},{text[-2:]}",
    ]
    return Answer(dice.choice([text, grouped(number, dice.choice(SEPARATORS))]), same, other)


@kind
def lists_of_digit_groups(dice: Dice) -> Answer:
    one, other = two(dice, 1000, 90000)
    gold = dice.choice([f"{one}, {other}", f"{grouped(one, ',')}, {grouped(other, ',')}"])
    same = [f"{grouped(one, s)}, {grouped(other, s)}" for s in ("{,}", "\\,", "\u2009", ",")]
    same += [f"{grouped(other, '{,}')} \\text{{ and }} {grouped(one, '{,}')}"]
    return Answer(gold, same, [f"{grouped(one, '{,}')}, {grouped(other + 1, '{,}')}", grouped(one, "{,}")])


@kind
def scientific(dice: Dice) -> Answer:
    digits, power = dice.randint(11, 99), dice.randint(3, 12)
    lead = f"{digits // 10}.{digits % 10}"
    if dice.random() < 0.5:
        number = str(digits * 10 ** (power - 1))
        same = [
            f"{lead} \\times 10^{{{power}}}",
            f"{lead}\\cdot 10^{power if power < 10 else f'{{{power}}}'}",
            f"{lead}e{power}",
            f"{lead}\u00d710^{{{power}}}",
        ]
        same += [f"{digits}\\times 10^{{{power - 1}}}", grouped(int(number), "{,}")]
        return Answer(
            dice.choice([number, same[0]]),
            same,
            [f"{lead} \\times 10^{{{power + 1}}}", f"{lead}e{power - 1}", f"{lead}\\times 10^{{-{power}}}", lead],
        )
    number = f"\\frac{{{digits}}}{{{10 ** (power + 1)}}}"
    same = [
        f"{lead} \\times 10^{{-{power}}}",
        f"{lead}\\cdot 10^{{-{power}}}",
        f"{lead}e-{power}",
        f"{digits}\\times10^{{-{power + 1}}}",
    ]
    same += ["0." + "0" * (power - 1) + str(digits)]
    return Answer(
        dice.choice([number, same[0]]),
        same,
        [f"{lead} \\times 10^{{-{power + 1}}}", f"{lead}\\times 10^{{{power}}}", "0." + "0" * power + str(digits)],
    )


@kind
def percent(dice: Dice) -> Answer:
    number = dice.choice([5, 10, 20, 25, 40, 50, 60, 75, 80, 4, 2])
    if dice.random() < 0.4:
        gold = dice.choice(
            [str(number), f"\\frac{{1}}{{{number}}}", f"{number}.5", f"\\${number}.50", f"\\sqrt{{{number}}}"]
        )
        bare = gold.removeprefix("\\$")
        return Answer(gold, [bare], [f"{bare}\\%", f"{bare}\\text{{ percent}}"])
    share = f"{number / 100}"
    gold = dice.choice([f"{number}\\%", share, f"\\frac{{{number}}}{{100}}"])
    same = [f"{number}\\%", f"{number}\\text{{ percent}}", share, f"\\frac{{{number}}}{{100}}", f"{number} \\text{{%}}"]
    return Answer(
        gold,
        [*same, str(number)] if "%" in gold else same,
        [f"{number + 1}\\%", f"{number * 10}\\%", f"{share}\\%", f"{number / 10}"],
    )


@kind
def fractions(dice: Dice) -> Answer:
    below = dice.choice([3, 4, 5, 7, 8, 9, 11, 16])
    above = dice.choice([n for n in range(1, 60) if n % below])
    value = f"\\frac{{{above}}}{{{below}}}"
    same = [
        f"{above}/{below}",
        f"\\dfrac{{{above}}}{{{below}}}",
        f"\\frac{{{3 * above}}}{{{3 * below}}}",
        f"{above}\\cdot\\frac{{1}}{{{below}}}",
        f"{above} \\div {below}",
        f"{value}\\text{{ units}}",
        f"P = {value}",
        f"\\left({value}\\right)",
    ]
    if below in (4, 5, 8, 16):
        same.append(str(above / below))
    if above > below:
        same += [f"{above // below}\\frac{{{above % below}}}{{{below}}}", f"{above // below} {above % below}/{below}"]
    miss = [
        f"\\frac{{{above + 1}}}{{{below}}}",
        f"\\frac{{{below}}}{{{above}}}",
        f"{value}\\pi",
        f"-{value}",
        f"{above}{below}",
        f"\\sqrt{{{value}}}",
    ]
    return Answer(value, same, miss if below in (4, 5, 8, 16) else [*miss, f"{above / below:.4f}"])


@kind
def closed_forms(dice: Dice) -> Answer:
    a, b = two(dice, 2, 12)
    gold, same, other = dice.choice(
        [
            (
                f"{a}\\sqrt{{{b}}}",
                [
                    f"\\sqrt{{{a * a * b}}}",
                    f"\\sqrt{{{b}}}\\cdot {a}",
                    f"\\frac{{{a * b}}}{{\\sqrt{{{b}}}}}",
                    f"{a}\u221a{b}",
                    f"{a}\\times {b}^{{1/2}}",
                ],
                [f"\\pm {a}\\sqrt{{{b}}}", f"{a + 1}\\sqrt{{{b}}}", f"{a}\\sqrt[3]{{{b}}}", f"{a * b**0.5:.3f}"]
                if b not in (4, 9)
                else [],
            ),
            (
                f"\\frac{{{a}\\pi}}{{{b}}}",
                [
                    f"{a}\\pi/{b}",
                    f"\\frac{{{a}}}{{{b}}}\\pi",
                    f"\\pi\\cdot\\frac{{{a}}}{{{b}}}",
                    f"\\frac{{{2 * a}\u03c0}}{{{2 * b}}}",
                ],
                [
                    f"\\frac{{{a}\\pi}}{{{b + 1}}}",
                    f"\\frac{{{a}}}{{{b}}}",
                    f"{a * 3.14159265 / b:.4f}",
                    f"\\frac{{{a}\\pi^2}}{{{b}}}",
                ],
            ),
            (
                f"{a}^{{{b * 7}}}",
                [f"{a}^{{{b * 7 - 1}}}\\cdot {a}", str(a ** (b * 7)), f"({a}^{{{b}}})^7"],
                [f"{a}^{{{b * 7 - 1}}}", str(a ** (b * 7) + 1), f"{a * 7}^{{{b}}}", f"{a}^{{{b * 7}}}+1"],
            ),
            (
                f"{a + 20}!",
                [f"{a + 20}\\cdot {a + 19}!", f"\\frac{{{a + 21}!}}{{{a + 21}}}", f"({a + 20})!"],
                [f"{a + 19}!", f"{a + 20}!+1", f"{a + 20}"],
            ),
            (
                f"\\binom{{{a + 30}}}{{{b}}}",
                [
                    f"\\frac{{{a + 30}!}}{{{b}!\\,{a + 30 - b}!}}",
                    f"\\dbinom{{{a + 30}}}{{{b}}}",
                    f"\\binom{{{a + 30}}}{{{a + 30 - b}}}",
                    f"C({a + 30},{b})",
                ][:3],
                [f"\\binom{{{a + 30}}}{{{b + 1}}}", f"\\frac{{{a + 30}}}{{{b}}}", f"\\binom{{{a + 31}}}{{{b}}}"],
            ),
            (
                f"\\frac{{\\ln {a + 1}}}{{\\ln {b + 13}}}",
                [
                    f"\\log_{{{b + 13}}} {a + 1}",
                    f"\\frac{{\\log {a + 1}}}{{\\log {b + 13}}}",
                    f"\\log_{{{b + 13}}}({a + 1})",
                ],
                [
                    f"\\frac{{\\ln {b + 13}}}{{\\ln {a + 1}}}",
                    f"\\ln {a + 1} - \\ln {b + 13}",
                    f"\\ln\\frac{{{a + 1}}}{{{b + 13}}}",
                ],
            ),
            (
                f"{a}+{b}i",
                [f"{b}i+{a}", f"{a}+{b}\\cdot i", f"{a}+{b}\\mathrm{{i}}", f"z = {a} + {b}i"],
                [f"{a}-{b}i", f"{b}+{a}i", f"{a}+{b}", f"{a}+{b}j"],
            ),
        ]
    )
    return Answer(gold, same, other)


@kind
def bases(dice: Dice) -> Answer:
    base = dice.choice([5, 6, 7, 8, 9])
    digits = "".join(str(dice.randint(1, base - 1)) for _ in range(dice.randint(2, 4)))
    last = (int(digits[-1]) + 1) % base
    word = BASES[base]
    forms = [
        f"{digits}_{base}",
        f"{digits}_{{{base}}}",
        f"({digits})_{base}",
        f"({digits})_{{{base}}}",
        f"{digits}_{{\\text{{{word}}}}}",
        f"{digits}_{{\\text{{{word}}}}}.",
    ]
    forms += [f"{digits}_{{\\mathrm{{{word}}}}}", f"\\text{{{digits}}}_{{{base}}}"]
    other = [
        f"{digits}_{{{base + 1}}}",
        f"{digits[:-1]}{last}_{base}",
        f"({digits}1)_{base}",
        f"{digits}_{{\\text{{{BASES.get(base + 1, 'two')}}}}}",
    ]
    gold = dice.choice([*forms[:5], str(int(digits, base))])
    return Answer(gold, forms, [*other, digits])


@kind
def clocks(dice: Dice) -> Answer:
    hour, minute = dice.randint(13, 23), dice.randint(10, 59)
    half = hour - 12
    times = [
        f"{hour}:{minute}",
        f"{half}:{minute} pm",
        f"{half}:{minute}\\text{{ p.m.}}",
        f"{half}:{minute}\\,\\text{{PM}}",
    ]
    gold = dice.choice(times)
    same = [*times, f"{half:02}:{minute} p.m.", f"\\text{{{half}:{minute} PM}}", f"{hour}:{minute}:00"]
    wrong = [
        f"{half}:{minute} am",
        f"{half}:{minute + 1 if minute < 59 else 10} pm",
        f"{half % 11 + 1}:{minute} pm",
        f"{half}:{minute}\\text{{ a.m.}}",
    ]
    return Answer(gold, same, wrong)


@kind
def trigonometry(dice: Dice) -> Answer:
    gold, same, other = dice.choice(IDENTITIES)
    return Answer(gold, list(same), list(other))
