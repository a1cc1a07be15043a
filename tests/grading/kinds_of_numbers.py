"""Numbers: their digits, bases, units and closed forms."""

from tests.grading.answers import Answer, Dice, drawn, grouped, kind, two

SEPARATORS = (",", "{,}", "\\,", "\\ ", " ", "~", "\u2009", "\u202f", "\u00a0", ",\\!", ",\\! ", "{,} ", "\\;")
BASES = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}


@kind
def digit_groups(dice: Dice) -> Answer:
    number = dice.randrange(1000, 10 ** dice.randint(4, 10))
    table = """
        «n» ; «anyhow»
        ! «more» ; «tenfold» ; «n[:-1]» ; «n[:-2]»,«n[-2:]»
        """
    more, anyhow = grouped(number + 1, dice.choice(SEPARATORS)), grouped(number, dice.choice(SEPARATORS))
    answer = drawn(dice, table, n=str(number), more=more, anyhow=anyhow, tenfold=grouped(number * 10, ","))
    return answer._replace(same=[grouped(number, separator) for separator in SEPARATORS])


@kind
def lists_of_digit_groups(dice: Dice) -> Answer:
    one, other = two(dice, 1000, 90000)
    gold = dice.choice([f"{one}, {other}", f"{grouped(one, ',')}, {grouped(other, ',')}"])
    same = [f"{grouped(one, s)}, {grouped(other, s)}" for s in ("{,}", "\\,", "\u2009", ",")]
    same += [f"{grouped(other, '{,}')} \\text{{ and }} {grouped(one, '{,}')}"]
    return Answer(gold, same, [f"{grouped(one, '{,}')}, {grouped(other + 1, '{,}')}", grouped(one, "{,}")])


@kind
def scientific(dice: Dice) -> Answer:
    digits, k = dice.randint(11, 99), dice.randint(3, 12)
    large = r"""
        «digits * 10 ** (k - 1)» ; «d» \times 10^{«k»}
        = «d» \times 10^{«k»} ; «d»\cdot 10^«k if k < 10 else "{%d}" % k» ; «d»e«k» ; «d»×10^{«k»}
        = «digits»\times 10^{«k - 1»} ; «groups»
        ! «d» \times 10^{«k + 1»} ; «d»e«k - 1» ; «d»\times 10^{-«k»} ; «d»
        """
    small = r"""
        \frac{«digits»}{«10 ** (k + 1)»} ; «d» \times 10^{-«k»}
        = «d» \times 10^{-«k»} ; «d»\cdot 10^{-«k»} ; «d»e-«k» ; «digits»\times10^{-«k + 1»} ; 0.«"0" * (k - 1)»«digits»
        ! «d» \times 10^{-«k + 1»} ; «d»\times 10^{«k»} ; 0.«"0" * k»«digits»
        """
    table, groups = large if dice.random() < 0.5 else small, grouped(digits * 10 ** (k - 1), "{,}")
    return drawn(dice, table, digits=digits, d=f"{digits // 10}.{digits % 10}", k=k, groups=groups)


@kind
def percent(dice: Dice) -> Answer:
    n = dice.choice([5, 10, 20, 25, 40, 50, 60, 75, 80, 4, 2])
    if dice.random() < 0.4:
        gold = dice.choice([str(n), f"\\frac{{1}}{{{n}}}", f"{n}.5", f"\\${n}.50", f"\\sqrt{{{n}}}"])
        bare = gold.removeprefix("\\$")
        return Answer(gold, [bare], [f"{bare}\\%", f"{bare}\\text{{ percent}}"])
    table = r"""
        «n»\% ; «n / 100» ; \frac{«n»}{100}
        = «n»\% ; «n»\text{ percent} ; «n / 100» ; \frac{«n»}{100} ; «n» \text{%}
        ! «n + 1»\% ; «n * 10»\% ; «n / 100»\% ; «n / 10»
        """
    answer = drawn(dice, table, n=n)
    return answer._replace(same=[*answer.same, str(n)]) if "%" in answer.gold else answer


@kind
def fractions(dice: Dice) -> Answer:
    b = dice.choice([3, 4, 5, 7, 8, 9, 11, 16])
    a = dice.choice([n for n in range(1, 60) if n % b])
    table = r"""
        \frac{«a»}{«b»}
        = «a»/«b» ; \dfrac{«a»}{«b»} ; \frac{«3 * a»}{«3 * b»} ; «a»\cdot\frac{1}{«b»} ; «a» \div «b»
        = \frac{«a»}{«b»}\text{ units} ; P = \frac{«a»}{«b»} ; \left(\frac{«a»}{«b»}\right) ; «a / b if ends else ""»
        = «mixed» ; «mixed_in_line»
        ! \frac{«a + 1»}{«b»} ; \frac{«b»}{«a»} ; \frac{«a»}{«b»}\pi ; -\frac{«a»}{«b»} ; «a»«b»
        ! \sqrt{\frac{«a»}{«b»}} ; «"" if ends else "%.4f" % (a / b)»
        """
    mixed = (f"{a // b}\\frac{{{a % b}}}{{{b}}}", f"{a // b} {a % b}/{b}") if a > b else ("", "")
    return drawn(dice, table, a=a, b=b, ends=b in (4, 5, 8, 16), mixed=mixed[0], mixed_in_line=mixed[1])


@kind
def closed_forms(dice: Dice) -> Answer:
    a, b = two(dice, 2, 12)
    table = r"""
        «a»\sqrt{«b»}
        = \sqrt{«a * a * b»} ; \sqrt{«b»}\cdot «a» ; \frac{«a * b»}{\sqrt{«b»}} ; «a»√«b» ; «a»\times «b»^{1/2}
        ! \pm «a»\sqrt{«b»} ; «a + 1»\sqrt{«b»} ; «a»\sqrt[3]{«b»} ; «"" if b in (4, 9) else "%.3f" % (a * b**0.5)»
        \frac{«a»\pi}{«b»}
        = «a»\pi/«b» ; \frac{«a»}{«b»}\pi ; \pi\cdot\frac{«a»}{«b»} ; \frac{«2 * a»π}{«2 * b»}
        ! \frac{«a»\pi}{«b + 1»} ; \frac{«a»}{«b»} ; «"%.4f" % (a * 3.14159265 / b)» ; \frac{«a»\pi^2}{«b»}
        «a»^{«7 * b»}
        = «a»^{«7 * b - 1»}\cdot «a» ; «a ** (7 * b)» ; («a»^{«b»})^7
        ! «a»^{«7 * b - 1»} ; «a ** (7 * b) + 1» ; «7 * a»^{«b»} ; «a»^{«7 * b»}+1
        «a + 20»!
        = «a + 20»\cdot «a + 19»! ; \frac{«a + 21»!}{«a + 21»} ; («a + 20»)!
        ! «a + 19»! ; «a + 20»!+1 ; «a + 20»
        \binom{«a + 30»}{«b»}
        = \frac{«a + 30»!}{«b»!\,«a + 30 - b»!} ; \dbinom{«a + 30»}{«b»} ; \binom{«a + 30»}{«a + 30 - b»}
        ! \binom{«a + 30»}{«b + 1»} ; \frac{«a + 30»}{«b»} ; \binom{«a + 31»}{«b»}
        \frac{\ln «a + 1»}{\ln «b + 13»}
        = \log_{«b + 13»} «a + 1» ; \frac{\log «a + 1»}{\log «b + 13»} ; \log_{«b + 13»}(«a + 1»)
        ! \frac{\ln «b + 13»}{\ln «a + 1»} ; \ln «a + 1» - \ln «b + 13» ; \ln\frac{«a + 1»}{«b + 13»}
        «a»+«b»i
        = «b»i+«a» ; «a»+«b»\cdot i ; «a»+«b»\mathrm{i} ; z = «a» + «b»i
        ! «a»-«b»i ; «b»+«a»i ; «a»+«b» ; «a»+«b»j
        """
    return drawn(dice, table, a=a, b=b)


@kind
def bases(dice: Dice) -> Answer:
    base = dice.choice([5, 6, 7, 8, 9])
    n = "".join(str(dice.randint(1, base - 1)) for _ in range(dice.randint(2, 4)))
    table = r"""
        «n»_«b» ; «n»_{«b»} ; («n»)_«b» ; («n»)_{«b»} ; «n»_{\text{«word»}} ; «value»
        = «n»_«b» ; «n»_{«b»} ; («n»)_«b» ; («n»)_{«b»} ; «n»_{\text{«word»}} ; «n»_{\text{«word»}}.
        = «n»_{\mathrm{«word»}} ; \text{«n»}_{«b»}
        ! «n»_{«b + 1»} ; «n[:-1]»«(n[-1] | int + 1) % b»_«b» ; («n»1)_«b» ; «n»_{\text{«next»}} ; «n»
        """
    return drawn(dice, table, n=n, b=base, word=BASES[base], next=BASES.get(base + 1, "two"), value=int(n, base))


@kind
def clocks(dice: Dice) -> Answer:
    h, m = dice.randint(1, 11), dice.randint(10, 59)
    table = r"""
        «h + 12»:«m» ; «h»:«m» pm ; «h»:«m»\text{ p.m.} ; «h»:«m»\,\text{PM}
        = «h + 12»:«m» ; «h»:«m» pm ; «h»:«m»\text{ p.m.} ; «h»:«m»\,\text{PM} ; «"%02d" % h»:«m» p.m.
        = \text{«h»:«m» PM} ; «h + 12»:«m»:00
        ! «h»:«m» am ; «h»:«m + 1 if m < 59 else 10» pm ; «h % 11 + 1»:«m» pm ; «h»:«m»\text{ a.m.}
        """
    return drawn(dice, table, h=h, m=m)


@kind
def trigonometry(dice: Dice) -> Answer:
    table = r"""
        \sin^2 x
        = 1-\cos^2 x ; \frac{1-\cos 2x}{2} ; 1-\cos^{2}(x) ; (\sin x)^2
        ! 1-\cos x ; \sin x^2 ; \cos^2 x ; \sin 2x
        2\sin x\cos x
        = \sin 2x ; \sin(2x) ; 2\cos x \sin x
        ! \sin x ; \cos 2x ; 2 \sin x
        \tan x
        = \frac{\sin x}{\cos x} ; \frac{1}{\cot x} ; \sec x \sin x
        ! \cot x ; \sin x ; \frac{\cos x}{\sin x}
        \cos 20^\circ
        = \sin 70^\circ ; \sin(90^\circ - 20^\circ) ; \cos\frac{\pi}{9} ; \cos(20^{\circ})
        ! \cos 20 ; \sin 20^\circ ; \sin 70 ; \cos 70^\circ
        \sin 20^\circ
        = \cos 70^\circ ; \sin\left(\frac{\pi}{9}\right) ; \sin 20° ; \sin 160^\circ
        ! \sin 20 ; \sin 200^\circ ; \cos 20^\circ
        \arctan 2
        = \tan^{-1} 2 ; \arctan(2) ; \frac{\pi}{2}-\arctan\frac{1}{2}
        ! \tan 2 ; \arctan 3 ; \frac{1}{\tan 2}
        \frac{\sqrt{3}}{2}
        = \sin 60^\circ ; \cos 30^\circ ; \sin\frac{\pi}{3}
        ! \sin 60 ; \sin 30^\circ
        \sin(90^\circ - x)
        = \cos x ; \cos(x) ; \cos(-x)
        ! \sin x ; \cos 2x
        """
    return drawn(dice, table)
