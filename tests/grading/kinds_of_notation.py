"""Notations that mean the same: repeating decimals, conditions in braces, roots and functions without a backslash."""

from fractions import Fraction

from tests.grading.answers import Answer, Dice, drawn, kind, two


@kind
def repeating_decimals(dice: Dice) -> Answer:
    whole, fixed = dice.randint(0, 9), dice.choice(["", "0", "1", "25"])
    x = str(dice.choice([3, 27, 36, 135, 571428]))
    value = Fraction(int(f"{whole}{fixed}{x}") - int(f"{whole}{fixed}"), (10 ** len(x) - 1) * 10 ** len(fixed))
    table = r"""
        «n»\overline{«x»} ; \frac{«above»}{«below»}
        = \frac{«above»}{«below»} ; «above»/«below» ; «n»«x»\overline{«x»} ; «n»«x[0]»\overline{«x[1:]»«x[0]»}
        = «n»\bar{«x»} ; «n»(«x») ; x = «n»\overline{«x»} ; «n»\overline{«x»}
        ! «n»«x» ; -«n»\overline{«x»} ; «n»\overline{«x»1} ; «n»\overline{«x»}\pi ; «n[1:]»\overline{«x»}1
        """
    return drawn(dice, table, n=f"{whole}.{fixed}", x=x, above=value.numerator, below=value.denominator)


@kind
def zero(dice: Dice) -> Answer:
    """The one number that is its own negative; and no set without members."""
    n = dice.randint(1, 9)
    table = r"""
        0 ; \pm 0 ; x = \pm 0
        = 0 ; \pm 0 ; x = \pm 0 ; ±0 ; \mp 0 ; -0 ; 0.0 ; \{0\} ; \frac{0}{7}
        ! \pm «n» ; \emptyset ; \{\} ; \text{no solution} ; \{0, «n»\} ; \{\emptyset\}
        """
    return drawn(dice, table, n=n)


@kind
def named_sets(dice: Dice) -> Answer:
    reals = [r"\mathbb{R}", r"\mathbb R", r"\Bbb{R}", r"\text{all real numbers}", r"\text{All reals}"]
    reals += [r"(-\infty,\infty)"]
    empty = [r"\emptyset", r"\varnothing", r"\{\}", r"\text{no solution}", r"\text{the empty set}", "\u2205"]
    empty += [r"\text{no real solutions}", r"\text{There are no solutions.}", r"\text{No solution exists}"]
    forms, other = dice.choice([(reals, empty[:3]), (empty, reals[:3])])
    miss = [r"\{\emptyset\}", r"\mathbb{Z}", r"\{0\}", r"[0, \infty)", r"\mathbb{R} \setminus \{0\}", "R"]
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
    gold, left, other = dice.choice([(down, "\\lfloor", up), (up, "\\lceil", down)])
    table = r"""
        «gold»
        = «l» n/«a» «r» ; \left«l» \dfrac{n}{«a»} \right«r» ; «l» \frac{2n}{«2 * a»} «r»
        ! «other» ; «l» n/«b» «r» ; n/«a» ; «l» n «r»/«a» ; «gold» + 1
        """
    return drawn(dice, table, gold=gold, other=other, a=a, b=b, l=left, r=left.replace("l", "r", 1))


@kind
def plain_text(dice: Dice) -> Answer:
    a, b = two(dice, 2, 9)
    table = r"""
        «a»\pi
        = «a»pi ; «a» pi ; pi*«a» ; «2 * a»*pi/2
        ! «b»pi ; «a»pi^2 ; «a»+pi
        «a»\sqrt{7}
        = «a»sqrt(7) ; «a»*sqrt(7) ; sqrt(«7 * a * a»)
        ! sqrt(«7 * a») ; «b»sqrt(7)
        \sin «a»x
        = sin(«a»x) ; sin(«a»*x)
        ! sin(«b»x) ; cos(«a»x) ; «a»sin(x)
        \ln «a»+x
        = ln(«a»)+x ; x+ln «a»
        ! ln(«b»)+x ; ln(«a»+x)
        \log_{«a»}«b»3
        = \log_{«a * a»}{(«b»3)^2} ; \log_«a»(«b»3)
        ! \log_{«b»}«a»3 ; \log «b»3
        """
    return drawn(dice, table, a=a, b=b)


@kind
def selections(dice: Dice) -> Answer:
    n, k = dice.randint(8, 12), dice.randint(2, 3)
    table = r"""
        \binom{«n»}{«k»}
        = {«n» \choose «k»} ; {}_{«n»}C_{«k»} ; ^{«n»}C_«k» ; {}_{«n»}\mathrm{C}_«k» ; \frac{{}_{«n»}P_{«k»}}{«k»!}
        = C(«n», «k») ; C_{«n»}^{«k»} ; \frac{P(«n»,«k»)}{«k»!}
        ! C(«n», «k + 1») ; («n», «k») ; P(«n», «k») ; C_{«n»}^{«k + 1»} ; {«n» \choose «k + 1»} ; {}_{«n»}P_{«k»}
        ! {«k» \choose «n»} ; \frac{«n»}{«k»}
        """
    return drawn(dice, table, n=n, k=k)


@kind
def vectors(dice: Dice) -> Answer:
    p, q = two(dice)
    table = r"""
        («p», «q»)
        = \langle «p», «q» \rangle ; \left\langle «p»,«q» \right\rangle ; \begin{pmatrix} «p» \cr «q» \end{pmatrix}
        ! \langle «q», «p» \rangle ; \langle «p», «q», 0 \rangle ; \lbrack «p», «q» \rbrack ; \lbrace «p», «q» \rbrace
        """
    return drawn(dice, table, p=p, q=q)


@kind
def systems_in_a_brace(dice: Dice) -> Answer:
    p, q = two(dice)
    table = r"""
        («p»,«q»)
        = \left\{\begin{array}{l} x = «p» \\ y = «q» \end{array}\right.
        = \left\{ \begin{aligned} x &= «p» \\ y &= «q» \end{aligned} \right.
        = \begin{cases} x = «p» \\ y = «q» \end{cases}
        ! \left\{\begin{array}{l} x = «p» \\ y = «q + 1» \end{array}\right.
        ! \left\{ \begin{aligned} x &= «q» \\ y &= «q» \end{aligned} \right.
        ! \begin{cases} x = «p» \\ y = «q + 1» \end{cases}
        """
    return drawn(dice, table, p=p, q=q)


@kind
def minutes_of_arc(dice: Dice) -> Answer:
    n, m = dice.randint(10, 89), dice.choice([6, 12, 15, 30, 45])
    table = r"""
        «n»^\circ «m»' ; «n»^{\circ}«m»^{\prime} ; «d»^\circ ; «d»^{o} ; «n»°«m»'0''
        = «n»^\circ «m»' ; «n»^{\circ}«m»^{\prime} ; «d»^\circ ; «d»^{o} ; «n»°«m»'0''
        ! «n»^\circ ; «n»^\circ «m + 1»' ; «n».«m»^\circ 1' ; «d»'
        """
    return drawn(dice, table, n=n, m=m, d=f"{n + m / 60:.2f}".rstrip("0"))


@kind
def counted_things(dice: Dice) -> Answer:
    n, things = dice.randint(2, 99), dice.choice(["ways", "marbles", "students in all", "integers"])
    table = r"""
        «n»
        = \text{«n» «things»} ; «n»\text{ «things»} ; = «n» ; \text{\$«n»} ; \textsf{«n»}
        ! \text{«n» or more «things»} ; \text{«n» hundred} ; \text{«n + 1» «things»} ; \text{«n» to 1}
        """
    return drawn(dice, table, n=n, things=things)


@kind
def letters(dice: Dice) -> Answer:
    """A capital is another letter."""
    x = dice.choice("rstkmn")
    table = r"""
        3«x»^2
        = «x»\cdot 3«x» ; 3«x»^2 \text{ for all } «x» > 0
        ! 3«X»^2 ; 3«X»^2
        2«x»+c
        = c+2«x» ; 2«x»+c \text{ for all } «x» > 0
        ! 2«X»+c ; 2«X»+C
        «x»«X»
        = «X»«x» ; «x»«X» \text{ for all } «x» > 0
        ! «x»^2 ; «X»^2
        """
    return drawn(dice, table, x=x, X=x.upper())


@kind
def products_without_a_sign(dice: Dice) -> Answer:
    a, b = two(dice, 3, 30)
    table = r"""
        «a * b»
        = «a»(«b») ; («a»)(«b») ; («a»)«b» ; «a»\left(«b»\right) ; \frac{«a»}{2}(«2 * b») ; «a»[«b»]
        ! «a»+«b» ; («a»)+(«b») ; «a» «b» ; «a»«b»
        «a + b»
        = «a»+«b» ; («a»)+(«b»)
        ! «a»(«b») ; («a»)(«b») ; («a»)«b» ; «a»\left(«b»\right) ; \frac{«a»}{2}(«2 * b») ; «a»[«b»]
        """
    return drawn(dice, table, a=a, b=b)


@kind
def roots_with_an_index(dice: Dice) -> Answer:
    a, b = two(dice)
    table = r"""
        x=«a», x=«b» ; «a», «b» ; \{«a», «b»\}
        = x_1=«a», x_2=«b» ; x_1=«b», x_2=«a» ; x_{1} = «b» \text{ and } x_{2} = «a»
        ! x_1=«a», x_2=«b + 1» ; x_1=«a» ; x=«b», y=«a + 1»
        """
    return drawn(dice, table, a=a, b=b)


@kind
def dates(dice: Dice) -> Answer:
    month, day = dice.choice(["June", "March", "October"]), dice.randint(2, 28)
    table = r"""
        \text{«month» «day»}
        = «month» «day» ; \text{«month.lower()» «day»} ; \text{«month» }«day» ; \text{«month» «day».}
        ! \text{«month» «day + 1»} ; «day» ; \text{May «day»} ; «month»
        """
    return drawn(dice, table, month=month, day=day)


@kind
def units(dice: Dice) -> Answer:
    n = dice.randint(3, 60)
    value = dice.choice([f"{n}", f"{n}\\pi", f"{n}\\sqrt{{3}}", f"\\frac{{{n}}}{{7}}"])
    table = r"""
        «v» \text{ cm}^2
        = «v» ; «v»\text{ cm}^2 ; «v»~cm^2 ; «v»\,\mathrm{cm}^2 ; «v» \text{ square centimeters}
        = A = «v» \text{ cm}^{2}
        ! «v»\text{ cm}^3 ; «v» \text{ m}^2 ; «v»^2 ; «v» cm ; 2 \cdot «v»
        """
    return drawn(dice, table, v=value)


@kind
def money(dice: Dice) -> Answer:
    table = r"""
        \$«n»
        = «n».00 ; \$«n» ; «n» \text{ dollars} ; \text{\$«n»} ; \$«n».00
        ! «n» \text{ cents} ; €«n» ; «n»\text{ cm} ; \$«n».50 ; «n»\%
        """
    return drawn(dice, table, n=dice.randint(3, 60))


@kind
def products_of_functions(dice: Dice) -> Answer:
    p, q = two(dice)
    t = dice.choice("xyt")
    table = r"""
        \ln «p» \cdot \ln «q»
        = \ln «q» \cdot \ln «p» ; \ln(«p»)\ln(«q»)
        ! \ln(«p» \cdot \ln «q»)
        \sin^2 «t»
        = \sin «t» \cdot \sin «t» ; (\sin «t»)^2
        ! \sin(«t» \cdot \sin «t»)
        3
        = \log_{«p»} «q» \times \log_{«q»} «p ** 3» ; \log_{«p»} «p ** 3»
        ! \log_{«p»} «p ** 2»
        «q» \cos «p»«t»
        = \cos «p»«t» \cdot «q» ; \cos(«p»«t») \cdot «q»
        ! \cos(«p»«t» \cdot «q»)
        """
    return drawn(dice, table, p=p, q=q, t=t)
