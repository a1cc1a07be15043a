r"""Answers of each kind with equivalent rewritings and near misses, made by rule from random numbers.

    python -m tests.grading.rewritings --count 200

prints false rejects and false accepts by kind. Exit code 1 above 1 % of the one or 0.2 % of the other.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import NamedTuple

from nemo_aopsd.grading import Grade, grade


class Answer(NamedTuple):
    """`same` are responses that state `gold` in another way, `other` responses that miss it narrowly."""

    gold: str
    same: list[str]
    other: list[str]


Dice = random.Random
KINDS: dict[str, Callable[[Dice], Answer]] = {}


def kind(make: Callable[[Dice], Answer]) -> Callable[[Dice], Answer]:
    KINDS[make.__name__] = make
    return make


def two(dice: Dice, low: int = 2, high: int = 40) -> tuple[int, int]:
    """Two distinct numbers."""
    one, other = dice.sample(range(low, high), 2)
    return one, other


def grouped(number: int, separator: str) -> str:
    return f"{number:,}".replace(",", separator)


SEPARATORS = (",", "{,}", "\\,", "\\ ", " ", "~", "\u2009", "\u202f", "\u00a0", ",\\!", ",\\! ", "{,} ", "\\;")


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


def fraction_forms(above: int, below: int) -> list[str]:
    sign, above = ("-" if above < 0 else ""), abs(above)
    forms = [f"{sign}\\frac{{{above}}}{{{below}}}", f"{sign}{above}/{below}", f"\\dfrac{{{sign}{above}}}{{{below}}}"]
    return [*forms, f"{sign}{above / below}"] if below in (2, 4, 5, 8) else forms


@kind
def matrices(dice: Dice) -> Answer:
    rows, columns = dice.choice([(2, 2), (2, 1), (1, 3), (3, 1), (2, 3)])
    numbers = [
        [(dice.choice([-1, 1]) * dice.randint(1, 9), dice.choice([1, 2, 3, 4, 5])) for _ in range(columns)]
        for _ in range(rows)
    ]

    def write(pick: Callable[[tuple[int, int]], str], environment: str = "pmatrix", ending: str = "\\\\ ") -> str:
        body = ending.join(" & ".join(map(pick, row)) for row in numbers)
        if environment == "array":
            return f"\\left[\\begin{{array}}{{{'c' * columns}}}{body}\\end{{array}}\\right]"
        return f"\\begin{{{environment}}} {body} \\end{{{environment}}}"

    def anyhow(pair: tuple[int, int]) -> str:
        return dice.choice(fraction_forms(*pair))

    gold = write(lambda pair: fraction_forms(*pair)[0], dice.choice(["pmatrix", "bmatrix"]))
    same = [
        write(anyhow),
        write(anyhow, "bmatrix"),
        write(anyhow, ending="\\\\[4pt] "),
        write(anyhow, "array"),
        "A = " + write(anyhow),
    ]
    if (rows, columns) == (2, 1):
        same.append(f"\\binom{{{anyhow(numbers[0][0])}}}{{{anyhow(numbers[1][0])}}}")
    if 1 in (rows, columns):
        same.append("(" + ", ".join(anyhow(pair) for row in numbers for pair in row) + ")")
    other = [write(anyhow, "vmatrix")] if rows == columns else []
    numbers[-1][-1] = (numbers[-1][-1][0] + 11, numbers[-1][-1][1])
    other.append(write(anyhow))
    numbers.pop()
    return Answer(gold, same, [*other, write(anyhow)] if numbers else [*other])


@kind
def several_boxes(dice: Dice) -> Answer:
    one, other = two(dice)
    third = max(one, other) + 1
    a, b, c = (f"\\boxed{{{number}}}" for number in (one, other, third))
    same = [f"{a} and {b}", f"${a}$, ${b}$", f"${a}$ or ${b}$", f"x = {b} \\quad \\text{{or}} \\quad x = {a}"]
    same += [
        f"\\({a}\\) and \\({b}\\)",
        f"{a}, \\ {b}",
        f"$x = {a}$ and $x = {b}$",
        f"The roots are {a} and {b}.",
        f"$x={a}$, $x={b}$",
    ]
    same += [f"Maybe {c}? No. The roots are {a} and {b}."]
    wrong = [f"{a} and {c}", b, f"{a}. Wait, that is wrong. So {b}", f"{a}, {b}, {c}", f"{a}, {b}. No: {c}"]
    return Answer(f"{one}, {other}", same, wrong)


@kind
def a_box_again(dice: Dice) -> Answer:
    one, other = two(dice)
    return Answer(
        str(other),
        [
            f"\\boxed{{{one}}}. But that is wrong; so it is \\boxed{{{other}}}.",
            f"\\boxed{{{other}}}\n\nSo \\boxed{{{other}}}",
        ],
        [f"\\boxed{{{other}}}. Wait. \\boxed{{{one}}}", f"\\boxed{{{one}}}, \\boxed{{{other}}}"],
    )


@kind
def systems(dice: Dice) -> Answer:
    (p, q), (r, s) = two(dice), two(dice)
    if (p, q) == (r, s):
        r += 1
    gold = dice.choice([f"({p},{q}),({r},{s})", f"(p,q)=({p},{q}),({r},{s})", f"({p}, {q}) \\text{{ and }} ({r}, {s})"])
    same = [
        f"p={p},q={q};p={r},q={s}",
        f"p={r}, q={s} \\text{{ or }} p={p}, q={q}",
        f"(p,q) = ({r},{s}), (p,q) = ({p},{q})",
        f"\\{{({r},{s}),({p},{q})\\}}",
        f"p={p}, q={q}; \\quad p={r}, q={s}",
        f"(p, q) = ({p}, {q}) \\text{{ or }} ({r}, {s})",
    ]
    other = [
        f"p={q},q={p};p={r},q={s}",
        f"p={p},q={q}",
        f"p={p},q={q};p={r},q={s + 1}",
        f"({p},{q},{r},{s})",
        f"{p},{q},{r},{s}",
    ]
    return Answer(gold, same, [text for text in other if sorted((p, q)) != sorted((r, s)) or "q=" not in text])


@kind
def one_system(dice: Dice) -> Answer:
    p, q = two(dice)
    same = [
        f"x={p}, y={q}",
        f"x = {p} \\text{{ and }} y = {q}",
        f"(x,y)=({p},{q})",
        f"\\left({p}, {q}\\right)",
        f"y={q}, x={p}",
    ]
    same += [f"\\begin{{cases}} x = {p} \\\\ y = {q} \\end{{cases}}"]
    return Answer(f"({p},{q})", same, [f"x={q}, y={p}", f"({q},{p})", f"x={p}", f"x={p}, y={q + 1}", f"[{p},{q})"])


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


@kind
def trigonometry(dice: Dice) -> Answer:
    gold, same, other = dice.choice(IDENTITIES)
    return Answer(gold, list(same), list(other))


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
        "no solution",
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


BASES = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}


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
def plus_minus(dice: Dice) -> Answer:
    a, b = two(dice, 2, 9)
    root = dice.choice([3, 5, 7, 11])
    gold, same, other = dice.choice(
        [
            (
                f"({a}+{b}\\sqrt{{{root}}}, {a}-{b}\\sqrt{{{root}}}), "
                f"({a}-{b}\\sqrt{{{root}}}, {a}+{b}\\sqrt{{{root}}})",
                [
                    f"({a}\\pm{b}\\sqrt{{{root}}}, {a}\\mp{b}\\sqrt{{{root}}})",
                    f"({a}\\mp{b}\\sqrt{{{root}}}, {a}\\pm{b}\\sqrt{{{root}}})",
                ],
                [
                    f"({a}\\pm{b}\\sqrt{{{root}}}, {a}\\pm{b}\\sqrt{{{root}}})",
                    f"({a}+{b}\\sqrt{{{root}}}, {a}-{b}\\sqrt{{{root}}})",
                    f"{a}\\pm{b}\\sqrt{{{root}}}",
                ],
            ),
            (
                f"\\pm {a}",
                [
                    f"-{a}, {a}",
                    f"{a} \\text{{ or }} -{a}",
                    f"x = \\pm {a}",
                    f"\\{{{a}, -{a}\\}}",
                    f"x={a}, x=-{a}",
                    f"\u00b1{a}",
                ],
                [f"(-{a},{a})", str(a), f"-{a}", f"\\pm {a + 1}", f"[-{a},{a}]", f"({a}, -{a})"],
            ),
            (
                f"{a}+\\sqrt{{{root}}}, {a}-\\sqrt{{{root}}}",
                [
                    f"{a} \\pm \\sqrt{{{root}}}",
                    f"{a} \\mp \\sqrt{{{root}}}",
                    f"x={a}\\pm\\sqrt{root}" if root < 10 else f"x={a}\\pm\\sqrt{{{root}}}",
                    f"\\frac{{{2 * a} \\pm \\sqrt{{{4 * root}}}}}{{2}}",
                ],
                [f"{a} + \\sqrt{{{root}}}", f"-{a} \\pm \\sqrt{{{root}}}", f"\\pm {a} + \\sqrt{{{root}}}"],
            ),
            (
                f"(1,{a}),(-1,-{a})",
                [f"(\\pm 1, \\pm {a})", f"\\pm(1,{a})", f"(-1,-{a}),(1,{a})"][2:],
                [f"(\\pm1,\\mp{a})", f"(1,{a})", f"(1,-{a}),(-1,{a})"],
            ),
        ]
    )
    return Answer(gold, same, other)


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
def brackets(dice: Dice) -> Answer:
    p, q = sorted(two(dice))
    gold, same, other = dice.choice(
        [
            (
                f"\\{{{p},{q}\\}}",
                [
                    f"\\{{{q}, {p}\\}}",
                    f"{q}, {p}",
                    f"{p} \\text{{ and }} {q}",
                    f"\\left\\{{{p},{q}\\right\\}}",
                    f"x \\in \\{{{p},{q}\\}}",
                ],
                [f"({p},{q})", f"({q},{p})", f"[{p},{q}]", f"\\{{{p}\\}}", f"\\{{{p},{q},0\\}}"],
            ),
            (
                f"({p},{q})",
                [f"({p}, {q})", f"\\left({p},{q}\\right)", f"(x,y)=({p},{q})"],
                [f"({q},{p})", f"\\{{{p},{q}\\}}", f"\\{{{q},{p}\\}}", f"{q},{p}", f"[{p},{q})", f"({p},{q}]"],
            ),
            (
                f"[{p},{q}]",
                [
                    f"[{p}, {q}]",
                    f"\\left[{p},{q}\\right]",
                    f"x\\in[{p},{q}]",
                    f"{p} \\le x \\le {q}",
                    f"{q} \\ge x \\ge {p}",
                ],
                [f"({p},{q})", f"\\{{{p},{q}\\}}", f"[{p},{q})", f"[{q},{p}]", f"{p} < x < {q}", f"{p} \\le x < {q}"],
            ),
        ]
    )
    return Answer(gold, same, other)


@kind
def regions(dice: Dice) -> Answer:
    p, q = sorted(two(dice))
    gold, same, other = dice.choice(
        [
            (
                f"(-\\infty, {p}) \\cup ({q}, \\infty)",
                [
                    f"x<{p} \\text{{ or }} x>{q}",
                    f"({q},\\infty)\\cup(-\\infty,{p})",
                    f"x \\in (-\\infty,{p})\\cup({q},+\\infty)",
                    f"\\mathbb{{R}} \\setminus [{p},{q}]",
                    f"x > {q} \\text{{ or }} x < {p}",
                    f"x<{p}, x>{q}",
                ],
                [
                    f"(-\\infty, {p}] \\cup ({q}, \\infty)",
                    f"x<{p} \\text{{ or }} x\\ge {q}",
                    f"({p},{q})",
                    f"{p}<x<{q}",
                    f"x<{p} \\text{{ and }} x>{q}",
                    f"(-\\infty,{p})",
                ],
            ),
            (
                f"(-\\infty, {p}) \\cup \\{{{q}\\}}",
                [f"x<{p} \\text{{ or }} x={q}", f"\\{{{q}\\}} \\cup (-\\infty,{p})", f"x = {q} \\text{{ or }} x < {p}"],
                [f"(-\\infty, {p}) \\cup \\{{{q + 1}\\}}", f"x<{p}", f"x \\le {p} \\text{{ or }} x={q}"],
            ),
            (
                f"x \\ge {p}",
                [f"[{p},\\infty)", f"{p} \\le x", f"x \\in [{p}, \\infty)", f"x\\geqslant {p}", f"[{p}, +\\infty)"],
                [f"x > {p}", f"({p},\\infty)", f"x \\le {p}", str(p), f"x \\ge {p + 1}", f"x = {p}"],
            ),
            (
                f"({p},{q}) \\cup ({q},{q + 5})",
                [
                    f"({p},{q + 5})\\setminus\\{{{q}\\}}",
                    f"({q},{q + 5})\\cup({p},{q})",
                    f"x \\in ({p},{q})\\cup({q},{q + 5})",
                ],
                [f"({p},{q + 5})", f"({p},{q}) \\cap ({q},{q + 5})", f"({p},{q}] \\cup ({q},{q + 5})", f"({p},{q})"],
            ),
            (
                "[1, \\infty)",
                ["x \\ge 1", "[2^0, \\infty)"],
                ["[2^{2^{-1000}}, \\infty)", "[0,\\infty)", "(1,\\infty)", "[1+10^{-40}, \\infty)"],
            ),
            (
                f"{p} < x \\le {q}",
                [f"({p},{q}]", f"{q} \\ge x > {p}", f"x \\in ({p},{q}]", f"x > {p} \\text{{ and }} x \\le {q}"],
                [f"[{p},{q}]", f"({p},{q})", f"{p} \\le x \\le {q}", f"{p} < x", f"x > {p} \\text{{ or }} x \\le {q}"],
            ),
        ]
    )
    return Answer(gold, same, other)


@kind
def equations(dice: Dice) -> Answer:
    a, b = two(dice, 2, 9)
    gold, same, other = dice.choice(
        [
            (
                f"{a}x - {b}y + 1 = 0",
                [f"{2 * a}x-{2 * b}y+2=0", f"{a}x+1={b}y", f"y = \\frac{{{a}x+1}}{{{b}}}", f"{b}y-{a}x=1"],
                [f"{a}x-{b}y+1", f"{a}x+{b}y+1=0", f"{a}x-{b}y+1=1", f"{a}x-{b}y=1"],
            ),
            (
                f"y = {a}x+{b}",
                [f"{a}x - y + {b} = 0", f"y-{b} = {a}x", f"y = {b}+{a}x"],
                [f"y = {a}x-{b}", f"y = {b}x+{a}", f"x = {a}y+{b}"],
            ),
            (
                f"x^2+y^2={a * a}",
                [f"y^2+x^2={a}^2", f"x^2+y^2-{a * a}=0", f"\\frac{{x^2+y^2}}{{{a * a}}}=1"],
                [f"x^2+y^2={a}", f"x^2-y^2={a * a}", f"x+y={a}"],
            ),
        ]
    )
    return Answer(gold, same, other)


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


def respond(text: str) -> str:
    """A response that ends in the text, boxed unless it brings boxes of its own."""
    return text if "\\boxed" in text else f"So the answer is \\boxed{{{text}}}."


def failures(
    make: Callable[[Dice], Answer], seed: int, count: int
) -> tuple[int, int, list[tuple[bool, str, str, Grade]]]:
    """Number of rewritings and of near misses, and those with the wrong verdict."""
    dice, same, other, wrong = Dice(seed), 0, 0, []
    for _ in range(count):
        answer = make(dice)
        pairs = [(True, text) for text in answer.same] + [(False, text) for text in answer.other]
        same, other = same + len(answer.same), other + len(answer.other)
        for expected, text in pairs:
            given = grade(respond(text), answer.gold)
            if given.correct != expected:
                wrong.append((expected, answer.gold, text, given))
    return same, other, wrong


def main() -> None:
    """Print the counts by kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=40, help="answers of each kind (default 40)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--show", type=int, default=0, help="this many wrong verdicts of each kind")
    arguments = parser.parse_args()
    totals = [0, 0, 0, 0]
    for name in arguments.kind or KINDS:
        same, other, wrong = failures(KINDS[name], arguments.seed, arguments.count)
        rejects = sum(expected for expected, *_ in wrong)
        totals = [
            total + more for total, more in zip(totals, (same, rejects, other, len(wrong) - rejects), strict=True)
        ]
        print(f"{name:24}{rejects:6} of {same:6} rejected {len(wrong) - rejects:6} of {other:6} accepted", flush=True)
        shown = {
            (expected, text[:3] + gold[:3]): (expected, gold, text, given) for expected, gold, text, given in wrong
        }
        for expected, gold, text, given in list(shown.values())[: arguments.show]:
            print(f"      {'rejected' if expected else 'ACCEPTED'}  gold {gold}   |   {text}   {given.cause}")
    same, rejects, other, accepts = totals
    print(
        f"all kinds: {rejects} of {same} rejected ({rejects / same:.2%}), "
        f"{accepts} of {other} accepted ({accepts / other:.2%})"
    )
    raise SystemExit(rejects > 0.01 * same or accepts > 0.002 * other)


if __name__ == "__main__":
    main()
