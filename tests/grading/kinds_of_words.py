"""Words, names, wrappings and degree signs."""

from tests.grading.answers import Answer, Dice, drawn, kind, two

WORDS = ["yes", "no", "east", "true", "odd", "even", "blue", "Monday", "neither", "Alice", "no winner"]
WORDS += ["all real numbers", "right triangle"]


@kind
def wrappings(dice: Dice) -> Answer:
    table = r"""
        «n»
        = «n»\ ; \text{«n»}\ ; «n».\ ;  «n»\  ; \mathbf{«n»} ; \(«n»\) ; \textbf{(«n»)} ; $«n»$\ ; \text{Answer: }«n»
        = \displaystyle «n» ; {«n»} ; \large{«n»} ; \underline{«n»} ; \bf «n» ; \color{blue}{«n»}
        ! «n»0 ; -«n» ; «n»! ; «n»^2 ; \frac{1}{«n»} ; \sqrt{«n»} ; \leq «n» ; \pm «n»
        """
    return drawn(dice, table, n=dice.randint(10, 999))


@kind
def words(dice: Dice) -> Answer:
    word, wrong = dice.sample(WORDS, 2)
    letters = sorted(word)
    mixed = "".join(letters if letters != list(word) else letters[::-1])
    table = r"""
        «word» ; \text{«word»} ; \text{«word.capitalize()»} ; \mathrm{«word.replace(" ", "~")»}
        = «word» ; \text{«word»} ; \textbf{«word»} ; «word.upper()» ; \text{«word».} ; \text{ «word.capitalize()»}
        = \mbox{«word»} ; \textit{«word»} ; \text{"«word»"}
        ! \text{«wrong»} ; «wrong» ; \text{not «word»} ; \text{«word»s} ; \text{«word» or «wrong»} ; \text{«mixed»}
        """
    return drawn(dice, table, word=word, wrong=wrong, mixed=mixed)


@kind
def choices(dice: Dice) -> Answer:
    x, y = dice.sample("ABCDE", 2)
    table = r"""
        \text{(«x»)} ; «x» ; \textbf{(«x»)} ; («x»)
        = \text{(«x»)} ; «x» ; \textbf{(«x»)} ; («x») ; \text{«x»} ; \mathrm{«x»} ; \textbf{(«x»)}\
        ! «y» ; \text{(«y»)} ; \textbf{«y»} ; «x»«y»
        """
    return drawn(dice, table, x=x, y=y)


@kind
def short_names(dice: Dice) -> Answer:
    p, q = dice.sample("abcdmnpqrstuvxyz", 2)
    table = r"""
        «p» - «q»
        = -«q»+«p» ; «p»-«q» ; -(«q»-«p»)
        ! «q» - «p» ; «p» + «q» ; \text{«p»«q»}-1
        «p»«q»
        = «q»«p» ; «p» «q» ; «p»\cdot «q» ; «q» \times «p»
        ! «p»+«q» ; «p»«p»«q» ; «p»
        2«p»«q»+«p»+«q»
        = «p»+«q»+2«q»«p» ; «p»(1+2«q»)+«q»
        ! «p»«q»+«p»+«q» ; 2«p»«q»
        \frac{«p»}{«q»}
        = «p»/«q» ; «p»«q»^{-1} ; \frac{2«p»}{2«q»}
        ! «q»/«p» ; \frac{«p»}{«q»^2}
        """
    return drawn(dice, table, p=p, q=q)


@kind
def names(dice: Dice) -> Answer:
    value = dice.choice([str(dice.randint(2, 99)), r"\sqrt{7}", r"\frac{3}{7}", r"2\pi"])
    x, y = dice.sample("abkmnpxyz", 2)
    table = r"""
        «v» ; «x»=«v» ; «x» = «v»
        = «v» ; «x»=«v» ; «v» = «x» ; $«x» = «v»$ ; «x»_1 = «v» ; «x» \approx «v» ; «x»_{\max} = «v»
        ! «x»=-«v» ; «x» = «v» + 1 ; «x» < «v» ; «x» \ge «v» ; «x» ; «x» \ne «v»
        """
    answer = drawn(dice, table, v=value, x=x)
    return answer._replace(other=[*answer.other, f"{y}={value}"]) if "=" in answer.gold else answer


@kind
def functions(dice: Dice) -> Answer:
    a, b = two(dice, 2, 9)
    f, t = dice.choice("fgh"), dice.choice("tyz")
    gold, rule, turned = dice.choice(
        [
            (f"{a}x+{b}", f"{a}{t}+{b}", f"{b}+{a}\\cdot x"),
            (f"{a}x", f"{a}{t}", f"x \\cdot {a}"),
            (f"\\frac{{x^2}}{{{a}}}-{b}", f"\\frac{{{t}^2}}{{{a}}}-{b}", f"-{b}+\\frac1{{{a}}}x^2"),
        ]
    )
    table = r"""
        «f»(x) = «gold»
        = «gold» ; «f»(x)=«gold» ; «f»(«t»)=«rule» ; «f»(x) = «turned» ; «gold» = «f»(x)
        ! «f»(x)=«gold»+1 ; «f»(«t»)=-(«rule») ; «f»(x)=«rule» ; «f»(x)=2(«gold») ; «f»(«t») = «gold»
        """
    return drawn(dice, table, f=f, t=t, gold=gold, rule=rule, turned=turned)


@kind
def degrees(dice: Dice) -> Answer:
    n = dice.randint(10, 170)
    table = r"""
        «n»^\circ
        = «n» ; «n»^\circ ; «n»° ; «n»^{\circ} ; «n»\degree ; «n»\text{ degrees} ; \theta = «n»^\circ
        = \angle ABC = «n»^\circ
        ! «n + 1»^\circ ; «n»\pi ; \frac{«n»\pi}{180} ; «180 - n if n != 90 else 91»^\circ
        """
    return drawn(dice, table, n=n)
