"""One spelling for the many ways to write the same answer: spaces, wrappers, glyphs, units, names before `=`."""

import re
from typing import NamedTuple

from nemo_aopsd.grading.extract import extract_answer

_GLYPHS = str.maketrans(
    dict.fromkeys("\u2212\u2013", "-")
    | dict.fromkeys("\u00b7\u22c5", "\\cdot ")
    | dict.fromkeys("\u00a0\u2009\u202f", " ")
    | dict.fromkeys("\u20ac\u00a3", "")
    | {"\u2044": "/", "\u201c": '"', "\u201d": '"', "\u2019": "'"}
    | {"\u00d7": "\\times ", "\u00f7": "/", "\u03c0": "\\pi ", "\u221e": "\\infty ", "\u00b1": "\\pm ", "\uff0c": ","}
    | {"\u2264": "\\le ", "\u2265": "\\ge ", "\u2260": "\\ne ", "\u2248": "\\approx ", "\u2208": "\\in "}
    | {"\u222a": "\\cup ", "\u2229": "\\cap ", "\u00b0": "^\\circ", "\u00b2": "^2", "\u00b3": "^3"}
    | {"\u00bd": "\\frac{1}{2}", "\u00bc": "\\frac{1}{4}", "\u00be": "\\frac{3}{4}"}
)
_SYNONYMS = {  # commands with one meaning, by the one that the rest of the grader knows
    name: meaning
    for names, meaning in (
        ("leq leqslant", "\\le "),
        ("geq geqslant", "\\ge "),
        ("neq", "\\ne "),
        ("dfrac tfrac cfrac", "\\frac"),
        ("dbinom tbinom", "\\binom"),
        ("smallsetminus", "\\setminus "),
        ("varnothing", "\\emptyset"),
        ("lbrace", "\\{"),
        ("rbrace", "\\}"),
        ("lbrack", "["),
        ("rbrack", "]"),
        ("langle", "("),
        ("rangle", ")"),
        ("bigcup", "\\cup "),
        ("bigcap", "\\cap "),
        ("cr", "\\\\ "),
        ("Bbb", "\\mathbb"),
        ("colon", ":"),
    )
    for name in names.split()
}
_SYNONYM = re.compile(rf"\\({'|'.join(_SYNONYMS)})(?![A-Za-z])")
_NAMED_SETS = (
    (re.compile(r"(?:(?:the )?set of )?(?:all |the )?(?:real numbers|reals)|all real", re.IGNORECASE), "\\mathbb{R}"),
    (
        re.compile(r"(?:the )?empty set|(?:there (?:is|are) )?no (?:real )?solutions?(?: exists?)?", re.IGNORECASE),
        "\\emptyset",
    ),
    (re.compile(r"infinity", re.IGNORECASE), "\\infty"),
)
_ROOT_GLYPH = re.compile(r"\u221a\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([0-9]+|[a-z]))")
_WRAPPED = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mathbf|mathit|mathsf|mathtt|mbox|operatorname|emph"
    r"|underline|boldsymbol|bm)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|mbox|emph)\s*\{[^{}]*\}\.?")
_TEXT_UNIT = re.compile(r"^\\(text\w*|mbox)\s*\{\s*([+-]?[0-9][0-9.,]*)\s+([A-Za-z][^{}]*)\}\.?$")  # `\text{18 ways}`
_BOX = re.compile(r"\\(?:boxed|fbox)\b")
_DEGREES = re.compile(
    r"\s*(?:\^\s*(?:\{\s*(?:\\circ|o)\s*\}|(?:\\circ|o)(?![A-Za-z]))|\\degree(?![A-Za-z])|\\(?:text|mathrm)\s*\{\s*degrees?\s*\}|\bdegrees?\b)"
)
_ANGLE = re.compile(
    rf"(?:\{{([^{{}}]*)\}}|\(((?:[^()]|\([^()]*\))*)\)|(\d+(?:\.\d+)?|[a-z]|\\[a-z]+)){_DEGREES.pattern}"
)
_PRIME = r"\s*(?:'|\^\s*\{?\\prime\}?)"
_ARC = re.compile(rf"([0-9]+){_DEGREES.pattern}\s*([0-9]+){_PRIME}(?:\s*([0-9]+)(?:{_PRIME}{{2}}|\"))?")
_HAS_ANGLE = re.compile(r"(?:\\sec|(?<![A-Za-z])(?:sin|cos|tan|cot|csc|cis))(?![a-z])")  # bare `sec` is a unit
_PERCENT = re.compile(r"\\%|\b(?:percentage|percent|pct)\b|\s%")
_GROUP = r"(?:\\,\\!|,\\!|\\[,!;: ]|\s?\{,\s?\}|\s|~)"
_THOUSANDS = re.compile(rf"(?<![\d.,])[1-9]\d{{0,2}}({_GROUP})\s*\d{{3}}(?:\1\s*\d{{3}})*(?!\d|\s*/|\s*\\[dt]?frac)")
_NARROW = re.compile(r"(?<!\\)\\!|\\(?:left|right|displaystyle|textstyle|limits|[bB]ig+[lr]?)(?![A-Za-z])")
_BLANK = re.compile(r"(?<!\\)\\[,;: ]|~|\\q?quad(?![A-Za-z])")
_STYLE = re.compile(r"\\(?:bf|rm|it|large|Large|huge|small)(?![A-Za-z])|\\(?:text)?color\{\w+\}|\\pmod\s*\{\w+\}$")
_ANSWER_IS = re.compile(
    r"^(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+)?(?:correct\s+|final\s+)?answer\s*(?:is|:|=)\s*:?\s*"
    r"|^(?:option|choice)\s+(?=\(?[A-Z]\)?$)",
    re.IGNORECASE,
)
_REPEATING = re.compile(
    r"([0-9]*)\.([0-9]*)(?:\\(?:overline|bar|dot)\s*(?:\{([0-9]+)\}|([0-9]))|\(([0-9]+)\))(?![0-9])"
)
_FOR_ALL = re.compile(r",?\s+(?:for\s+(?:all|any|every|each)|\\forall)\b.*$", re.DOTALL)
_PLAIN_CUP = re.compile(r"(?<=[)\]}])\s*U\s*(?=\\?[(\[{])")
_PLAIN_ROOT = re.compile(r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)")
_PLAIN_NAME = re.compile(r"(?<![A-Za-z\\])(pi|(?:arc)?(?:sin|cos|tan)|cot|csc|ln|log|exp)(?![A-Za-z])")
_CHOOSE = re.compile(r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}")
_ONE = r"(?:\{([^{}]+)\}|(\w))"  # of one argument, in braces or not
_SELECTED = re.compile(
    rf"(?:\{{\}}|(?<![\w}}]))[_^]{_ONE}\s*([CP])_{_ONE}|(?<![A-Za-z\\])([CP])(?:_{_ONE}\^{_ONE}|\((\d+), ?(\d+)\))"
)
_UNIT_WORDS = {
    "m": "m meter meters metre metres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mile miles",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "lb": "lb lbs pound pounds",
    "L": "L liter liters litre litres",
    "mph": "mph",
    "cent": "cent cents",
    "dollar": "dollar dollars USD",
    "euro": "euro euros EUR",
    "unit": "unit units",
}
_UNITS = {word: name for name, words in _UNIT_WORDS.items() for word in words.split()}
_CURRENCIES = {"\\$": "dollar", "\u20ac": "euro"}
_NO_UNIT = re.compile(  # words that change the value before them
    r"\b(?:[ap]\.?\s?m|base|and|or|to|if|for|when|is|not|no|more|less|plus|minus|times|mod|factorial|squared|cubed|pi"
    r"|half|halves|thirds?|percent|pct|percentage|dozens?|(?:hundred|thousand|million|billion|trillion)s?)\b",
    re.IGNORECASE,
)
_POWER = r"(?:\s*\^\s*\{?([23])\}?)?"
_PLAIN_UNIT = re.compile(
    r"(?:(?<=[0-9})])|(?<=\\pi)(?=\s))\s*(?:(square|sq\.?|cubic)\s+)?"
    rf"({'|'.join(sorted((word for word in _UNITS if len(word) > 1), key=len, reverse=True))}){_POWER}\.?$"
)
_WRAPPED_UNIT = re.compile(
    r"(?<=[0-9A-Za-z})$! ])\s*\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{\s*(?:(square|sq\.?|cubic)\s+)?"
    rf"([A-Za-z][A-Za-z ./-]*?)\.?{_POWER}\s*\}}{_POWER}\.?$"
)


class Answer(NamedTuple):
    """`text` in one spelling; `unit` is what was cut off its end, None if nothing; `percent` likewise.

    `is_text`: it was marked as words and not as a formula.
    """

    text: str
    unit: str | None = None
    percent: bool = False
    is_text: bool = False


def normalize(answer: str) -> Answer:
    r"""One spelling of an answer.

    >>> normalize("$\\dfrac12\\text{ cm}^2$.").text, normalize("7.5 inches").unit, normalize("50\\%").percent
    ('\\frac{1}{2}', 'in', True)
    """
    text = _outer(_glyphs(answer))
    is_text = bool(_TEXT.fullmatch(text))
    text = _TEXT_UNIT.sub(r"\2\\\1{\3}", text)
    text, unit = _cut_unit(_ANSWER_IS.sub("", _degrees(text)).strip())
    while text != (text := _WRAPPED.sub(r"\1", text)):
        pass
    text = _outer(text.replace("$", ""))
    text = _outer(_ANSWER_IS.sub("", _degrees(text)).strip())
    if unit is None:
        text, unit = _cut_unit(text)
    unit = unit or next((name for sign, name in _CURRENCIES.items() if sign in answer), None)
    without = _PERCENT.sub("", text).removesuffix("%").strip()
    return Answer(_arguments(without), unit, without != text, is_text)


def name_sets(answer: Answer) -> Answer:
    """With a set that is told in words as its formula."""
    words = answer.text.strip(" .\"'`")
    formula = next((formula for pattern, formula in _NAMED_SETS if pattern.fullmatch(words)), answer.text)
    return answer._replace(text=formula)


def _degrees(text: str) -> str:
    """A degree sign is a unit, and dropped; in the argument of a sine and the like it is a factor."""
    text = _ARC.sub(_arc, text)
    if _HAS_ANGLE.search(text):
        text = _ANGLE.sub(lambda angle: f"{{\\frac{{({angle[1] or angle[2] or angle[3]})\\pi}}{{180}}}}", text)
    return _DEGREES.sub("", text)


def _arc(angle: re.Match[str]) -> str:
    """Degrees, minutes and seconds as a fraction of a degree."""
    seconds = 3600 * int(angle[1]) + 60 * int(angle[2]) + int(angle[3] or 0)
    return f"\\frac{{{seconds}}}{{3600}}^\\circ"


def _glyphs(text: str) -> str:
    text = _ROOT_GLYPH.sub(lambda match: f"\\sqrt{{{match[1] or match[2] or match[3]}}}", text)
    text = text.translate(_GLYPHS).replace("\\$", "").replace("\\&", " and ")
    if "\\begin" not in text:  # escaped once too often; in a matrix it is a line break
        text = re.sub(r"\\\\(?=[A-Za-z{])", r"\\", text)
    text = _THOUSANDS.sub(lambda number: re.sub(r"\D", "", number[0]), text)
    text = text.replace("{,}", ",").replace("{, }", ",").replace("{:}", ":")
    text = _SYNONYM.sub(lambda command: _SYNONYMS[command[1]], _STYLE.sub("", text))
    return _NARROW.sub("", _BLANK.sub(" ", text))


def _outer(text: str) -> str:
    """Without a box, dollars, math brackets, currency signs, blanks and full stops around it."""
    while True:
        before = text
        text = text.strip(" \t\r\n")
        if _BOX.match(text):
            text = extract_answer(text) or text
        text = text.strip("$ \n").removeprefix("=")
        for opening, closing in (("\\(", "\\)"), ("\\[", "\\]"), ("**", "**")):
            if text.startswith(opening) and text.endswith(closing) and len(text) >= 4:
                text = text[2:-2]
        if text.endswith("\\") and not text.endswith("\\\\"):
            text = text[:-1]
        if text.endswith((".", ",", ":")) and not text.endswith("..."):
            text = text[:-1]
        if text == before:
            return text


def _cut_unit(text: str) -> tuple[str, str | None]:
    match = _WRAPPED_UNIT.search(text) or _PLAIN_UNIT.search(text)
    word = match[2].strip() if match else ""
    if match is None or _NO_UNIT.search(word) or (len(word) == 1 and word not in _UNITS):  # `3\mathrm{i}`: no three
        return text, None
    if text[: match.start()].rstrip()[-1:].isalpha() and word not in _UNITS:  # `n\text{th}`
        return text, None
    name = _UNITS.get(word, word.lower())
    power = next((group for group in match.groups()[2:] if group), None)
    power = power or {"s": "2", "c": "3"}.get((match[1] or " ")[0], "1")
    return text[: match.start()].strip(" ~$"), f"{name}^{power}" if power != "1" else name


def _arguments(text: str) -> str:
    r"""`\frac12` as `\frac{1}{2}`, `\sqrt3` as `\sqrt{3}`, `x_{1}` as `x_1`, `0.\overline{3}` as `\frac{3}{9}`."""
    text = _FOR_ALL.sub("", text)
    text = _PLAIN_NAME.sub(r"\\\1 ", _PLAIN_ROOT.sub(r"\\sqrt{\1}", _PLAIN_CUP.sub(r" \\cup ", text)))
    text = _SELECTED.sub(_selected, _CHOOSE.sub(r"\\binom{\1}{\2}", text))
    text = re.sub(r"\\(frac|binom)\s*(\\[a-z]+|[0-9A-Za-z])\s*([0-9A-Za-z])", r"\\\1{\2}{\3}", text)
    text = re.sub(r"\\frac\s*([0-9A-Za-z])\s*\{", r"\\frac{\1}{", text)
    text = re.sub(r"(\\frac\s*\{[^{}]*\})\s*([0-9A-Za-z])", r"\1{\2}", text)
    text = re.sub(r"\\sqrt\s*(\[[^][]*\])?\s*([0-9A-Za-z])", r"\\sqrt\1{\2}", text)
    text = re.sub(r"\\(frac|sqrt)\s+(?=[\[{])", r"\\\1", text)
    text = re.sub(r"_\{([0-9A-Za-z])\}(?![0-9A-Za-z])", r"_\1", text)
    text = re.sub(r"\\mathbb\s*R(?![A-Za-z])", r"\\mathbb{R}", text)
    return re.sub(r"\s+", " ", _REPEATING.sub(_repeating, text)).strip()


def _selected(numbers: re.Match[str]) -> str:
    """`{}_{n}C_{k}`, `C_{n}^{k}`, `C(n, k)`, and the same with P."""
    of, some = list(filter(None, numbers.group(1, 2, 4, 5, 7, 8, 9, 10, 11, 12)))
    return f"\\binom{{{of}}}{{{some}}}" if "C" in numbers.group(3, 6) else f"\\frac{{({of})!}}{{({of}-{some})!}}"


def _repeating(decimal: re.Match[str]) -> str:
    """The fraction of a decimal whose last digits repeat without end."""
    whole, fixed, repeated = decimal[1], decimal[2], decimal[3] or decimal[4] or decimal[5]
    above = int(f"{whole}{fixed}{repeated}") - int(f"0{whole}{fixed}")
    return f"\\frac{{{above}}}{{{'9' * len(repeated)}{'0' * len(fixed)}}}"
