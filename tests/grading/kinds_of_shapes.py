"""Answers of several parts: boxes, lists, tuples, matrices, sets, equations."""

from __future__ import annotations

from collections.abc import Callable

from tests.grading.answers import Answer, Dice, kind, two


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
def three_in_brackets(dice: Dice) -> Answer:
    p, q = two(dice)
    inner = f"{p}, {q}, {p + q}"
    gold, miss = dice.sample([f"({inner})", f"\\{{{inner}\\}}"], 2)
    return Answer(gold, [inner, gold.replace(" ", ""), f"A = {gold}"], [miss, gold.replace(str(q), str(q + 1))])


@kind
def repeated_values(dice: Dice) -> Answer:
    p, q = two(dice)
    same = [f"{q}, {p}, {p}", f"{p},{q},{p}", f"{p}, {p} \\text{{ and }} {q}", f"{2 * p}/2, {p}, {q}"]
    return Answer(f"{p}, {p}, {q}", same, [f"{p}, {q}, {q}", f"{p}, {q}", f"{p}, {p}, {p}, {q}", f"\\{{{p}, {q}\\}}"])


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
