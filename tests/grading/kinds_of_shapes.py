"""Answers of several parts: boxes, lists, tuples, matrices, sets, equations."""

from collections.abc import Callable

from tests.grading.answers import Answer, Dice, drawn, kind, two


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
    same = [write(anyhow), write(anyhow, "bmatrix"), write(anyhow, ending="\\\\[4pt] "), write(anyhow, "array")]
    same.append("A = " + write(anyhow))
    if (rows, columns) == (2, 1):
        same.append(f"\\binom{{{anyhow(numbers[0][0])}}}{{{anyhow(numbers[1][0])}}}")
    if 1 in (rows, columns):
        same.append("(" + ", ".join(anyhow(pair) for row in numbers for pair in row) + ")")
    other = [write(anyhow, "vmatrix")] if rows == columns else []
    numbers[-1][-1] = (numbers[-1][-1][0] + 11, numbers[-1][-1][1])
    other.append(write(anyhow))
    numbers.pop()
    return Answer(gold, same, [*other, write(anyhow)] if numbers else other)


@kind
def several_boxes(dice: Dice) -> Answer:
    p, q = two(dice)
    a, b, c = (f"\\boxed{{{number}}}" for number in (p, q, max(p, q) + 1))
    table = r"""
        «p», «q»
        = «a» and «b» ; $«a»$, $«b»$ ; $«a»$ or $«b»$ ; x = «b» \quad \text{or} \quad x = «a» ; \(«a»\) and \(«b»\)
        = «a», \ «b» ; $x = «a»$ and $x = «b»$ ; The roots are «a» and «b». ; $x=«a»$, $x=«b»$
        = Maybe «c»? No. The roots are «a» and «b».
        ! «a» and «c» ; «b» ; «a». Wait, that is wrong. So «b» ; «a», «b», «c» ; «a», «b». No: «c»
        """
    return drawn(dice, table, p=p, q=q, a=a, b=b, c=c)


@kind
def a_box_again(dice: Dice) -> Answer:
    p, q = two(dice)
    table = r"""
        «q»
        = \boxed{«p»}. But that is wrong; so it is \boxed{«q»}. ; \boxed{«q»}«"\n\n"»So \boxed{«q»}
        ! \boxed{«q»}. Wait. \boxed{«p»} ; \boxed{«p»}, \boxed{«q»}
        """
    return drawn(dice, table, p=p, q=q)


@kind
def systems(dice: Dice) -> Answer:
    (p, q), (r, s) = two(dice), two(dice)
    if (p, q) == (r, s):
        r += 1
    table = r"""
        («p»,«q»),(«r»,«s») ; (p,q)=(«p»,«q»),(«r»,«s») ; («p», «q») \text{ and } («r», «s»)
        = p=«p»,q=«q»;p=«r»,q=«s» ; p=«r», q=«s» \text{ or } p=«p», q=«q» ; (p,q) = («r»,«s»), (p,q) = («p»,«q»)
        = \{(«r»,«s»),(«p»,«q»)\} ; p=«p», q=«q»; \quad p=«r», q=«s» ; (p, q) = («p», «q») \text{ or } («r», «s»)
        ! p=«q»,q=«p»;p=«r»,q=«s» ; p=«p»,q=«q» ; p=«p»,q=«q»;p=«r»,q=«s + 1» ; («p»,«q»,«r»,«s») ; «p»,«q»,«r»,«s»
        """
    answer = drawn(dice, table, p=p, q=q, r=r, s=s)
    other = [text for text in answer.other if sorted((p, q)) != sorted((r, s)) or "q=" not in text]
    return answer._replace(other=other)


@kind
def one_system(dice: Dice) -> Answer:
    p, q = two(dice)
    table = r"""
        («p»,«q»)
        = x=«p», y=«q» ; x = «p» \text{ and } y = «q» ; (x,y)=(«p»,«q») ; \left(«p», «q»\right) ; y=«q», x=«p»
        = \begin{cases} x = «p» \\ y = «q» \end{cases}
        ! x=«q», y=«p» ; («q»,«p») ; x=«p» ; x=«p», y=«q + 1» ; [«p»,«q»)
        """
    return drawn(dice, table, p=p, q=q)


@kind
def plus_minus(dice: Dice) -> Answer:
    a, b = two(dice, 2, 9)
    n = dice.choice([3, 5, 7, 11])
    table = r"""
        («a»+«b»\sqrt{«n»}, «a»-«b»\sqrt{«n»}), («a»-«b»\sqrt{«n»}, «a»+«b»\sqrt{«n»})
        = («a»\pm«b»\sqrt{«n»}, «a»\mp«b»\sqrt{«n»}) ; («a»\mp«b»\sqrt{«n»}, «a»\pm«b»\sqrt{«n»})
        ! («a»\pm«b»\sqrt{«n»}, «a»\pm«b»\sqrt{«n»}) ; («a»+«b»\sqrt{«n»}, «a»-«b»\sqrt{«n»}) ; «a»\pm«b»\sqrt{«n»}
        \pm «a»
        = -«a», «a» ; «a» \text{ or } -«a» ; x = \pm «a» ; \{«a», -«a»\} ; x=«a», x=-«a» ; ±«a»
        ! (-«a»,«a») ; «a» ; -«a» ; \pm «a + 1» ; [-«a»,«a»] ; («a», -«a»)
        «a»+\sqrt{«n»}, «a»-\sqrt{«n»}
        = «a» \pm \sqrt{«n»} ; «a» \mp \sqrt{«n»} ; x=«a»\pm\sqrt«n if n < 10 else "{11}"»
        = \frac{«2 * a» \pm \sqrt{«4 * n»}}{2}
        ! «a» + \sqrt{«n»} ; -«a» \pm \sqrt{«n»} ; \pm «a» + \sqrt{«n»}
        (1,«a»),(-1,-«a»)
        = (-1,-«a»),(1,«a»)
        ! (\pm1,\mp«a») ; (1,«a») ; (1,-«a»),(-1,«a»)
        """
    return drawn(dice, table, a=a, b=b, n=n)


@kind
def brackets(dice: Dice) -> Answer:
    p, q = sorted(two(dice))
    table = r"""
        \{«p»,«q»\}
        = \{«q», «p»\} ; «q», «p» ; «p» \text{ and } «q» ; \left\{«p»,«q»\right\} ; x \in \{«p»,«q»\}
        ! («p»,«q») ; («q»,«p») ; [«p»,«q»] ; \{«p»\} ; \{«p»,«q»,0\}
        («p»,«q»)
        = («p», «q») ; \left(«p»,«q»\right) ; (x,y)=(«p»,«q»)
        ! («q»,«p») ; \{«p»,«q»\} ; \{«q»,«p»\} ; «q»,«p» ; [«p»,«q») ; («p»,«q»]
        [«p»,«q»]
        = [«p», «q»] ; \left[«p»,«q»\right] ; x\in[«p»,«q»] ; «p» \le x \le «q» ; «q» \ge x \ge «p»
        ! («p»,«q») ; \{«p»,«q»\} ; [«p»,«q») ; [«q»,«p»] ; «p» < x < «q» ; «p» \le x < «q»
        """
    return drawn(dice, table, p=p, q=q)


@kind
def three_in_brackets(dice: Dice) -> Answer:
    p, q = two(dice)
    inner = f"{p}, {q}, {p + q}"
    gold, miss = dice.sample([f"({inner})", f"\\{{{inner}\\}}"], 2)
    return Answer(gold, [inner, gold.replace(" ", ""), f"A = {gold}"], [miss, gold.replace(str(q), str(q + 1))])


@kind
def repeated_values(dice: Dice) -> Answer:
    p, q = two(dice)
    table = r"""
        «p», «p», «q»
        = «q», «p», «p» ; «p»,«q»,«p» ; «p», «p» \text{ and } «q» ; «2 * p»/2, «p», «q»
        ! «p», «q», «q» ; «p», «q» ; «p», «p», «p», «q» ; \{«p», «q»\}
        """
    return drawn(dice, table, p=p, q=q)


@kind
def regions(dice: Dice) -> Answer:
    p, q = sorted(two(dice))
    table = r"""
        (-\infty, «p») \cup («q», \infty)
        = x<«p» \text{ or } x>«q» ; («q»,\infty)\cup(-\infty,«p») ; x \in (-\infty,«p»)\cup(«q»,+\infty)
        = \mathbb{R} \setminus [«p»,«q»] ; x > «q» \text{ or } x < «p» ; x<«p», x>«q»
        ! (-\infty, «p»] \cup («q», \infty) ; x<«p» \text{ or } x\ge «q» ; («p»,«q») ; «p»<x<«q»
        ! x<«p» \text{ and } x>«q» ; (-\infty,«p»)
        (-\infty, «p») \cup \{«q»\}
        = x<«p» \text{ or } x=«q» ; \{«q»\} \cup (-\infty,«p») ; x = «q» \text{ or } x < «p»
        ! (-\infty, «p») \cup \{«q + 1»\} ; x<«p» ; x \le «p» \text{ or } x=«q»
        x \ge «p»
        = [«p»,\infty) ; «p» \le x ; x \in [«p», \infty) ; x\geqslant «p» ; [«p», +\infty)
        ! x > «p» ; («p»,\infty) ; x \le «p» ; «p» ; x \ge «p + 1» ; x = «p»
        («p»,«q») \cup («q»,«q + 5»)
        = («p»,«q + 5»)\setminus\{«q»\} ; («q»,«q + 5»)\cup(«p»,«q») ; x \in («p»,«q»)\cup(«q»,«q + 5»)
        ! («p»,«q + 5») ; («p»,«q») \cap («q»,«q + 5») ; («p»,«q»] \cup («q»,«q + 5») ; («p»,«q»)
        [1, \infty)
        = x \ge 1 ; [2^0, \infty)
        ! [2^{2^{-1000}}, \infty) ; [0,\infty) ; (1,\infty) ; [1+10^{-40}, \infty)
        «p» < x \le «q»
        = («p»,«q»] ; «q» \ge x > «p» ; x \in («p»,«q»] ; x > «p» \text{ and } x \le «q»
        ! [«p»,«q»] ; («p»,«q») ; «p» \le x \le «q» ; «p» < x ; x > «p» \text{ or } x \le «q»
        """
    return drawn(dice, table, p=p, q=q)


@kind
def equations(dice: Dice) -> Answer:
    a, b = two(dice, 2, 9)
    table = r"""
        «a»x - «b»y + 1 = 0
        = «2 * a»x-«2 * b»y+2=0 ; «a»x+1=«b»y ; y = \frac{«a»x+1}{«b»} ; «b»y-«a»x=1
        ! «a»x-«b»y+1 ; «a»x+«b»y+1=0 ; «a»x-«b»y+1=1 ; «a»x-«b»y=1
        y = «a»x+«b»
        = «a»x - y + «b» = 0 ; y-«b» = «a»x ; y = «b»+«a»x
        ! y = «a»x-«b» ; y = «b»x+«a» ; x = «a»y+«b»
        x^2+y^2=«a * a»
        = y^2+x^2=«a»^2 ; x^2+y^2-«a * a»=0 ; \frac{x^2+y^2}{«a * a»}=1
        ! x^2+y^2=«a» ; x^2-y^2=«a * a» ; x+y=«a»
        """
    return drawn(dice, table, a=a, b=b)
