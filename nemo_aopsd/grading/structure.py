r"""The shape of an answer: one value, a list or set, a tuple or interval, a union, a matrix. Shapes are compared here,
item by item; two values are compared by `compare_values`. `\pm` stands for a set."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, product, zip_longest
from typing import Literal

from nemo_aopsd.grading import exact

Kind = Literal["value", "list", "set", "tuple", "union", "matrix"]
Compare = Callable[[str, str], bool]

_OPEN, _CLOSE = "([{", ")]}"
SEPARATOR = re.compile(r"[,;]|(?<![A-Za-z\\])(?:and|or)(?![a-z])")
_CUP = re.compile(r"\\cup(?![A-Za-z])")
_NAME = r"(?:\\angle\s*[A-Z]{1,3}|(?:[A-Za-z]|\\[a-z]+)(?:_(?:\w|\{[^{}]*\}))?'*)"
_CALL = rf"{_NAME}(?:\((?:{_NAME}|-?\d+)\))?"
_NAMED = re.compile(rf"\s*({_CALL}|\(\s*{_NAME}(?:\s*,\s*{_NAME})+\s*\))\s*(?:=|\\in(?![a-z]))\s*(?!=)")
_NAMED_BEHIND = re.compile(rf"([^=]*)=\s*({_CALL})\s*")
_BOUND = re.compile(r"(.*)\(([A-Za-z])\)")
_TOKEN = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|ne|approx)(?![a-z])")
_SIGN = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_MOST_SIGNS = 4
_MATRIX = re.compile(
    r"[(\[]?\s*\\begin\{([pb]?matrix|smallmatrix|array)\}(?:\{[lcr| ]*\})?((?:(?!\\begin).)*)\\end\{\1\}\s*[)\]]?",
    re.DOTALL,
)
_CASES = re.compile(
    r"(?:\\begin\{(cases|aligned)\}|\\\{\s*\\begin\{(array|matrix|aligned|gathered)\}(?:\{[lcr| ]*\})?)"
    r"((?:(?!\\begin).)*)\\end\{(?:\1|\2)\}(?:\s*\.$)?",
    re.DOTALL,
)
_ROW_END = re.compile(r"\\\\\s*(?:\[[^\]]*\])?")
_BINOMIAL = re.compile(r"\\[dt]?binom\s*(\{.*\})")
_ARGUMENT_END = re.compile(r"(?<=\})\s*(?=\{)")
_MOST_ITEMS = 200


@dataclass(frozen=True, slots=True)
class Shape:
    """`brackets` are those of a tuple, `names` what stood before `=` of each item (blank if nothing did).

    A list has no brackets, a set has `\\{\\}`; `width` is the number of columns of a matrix.
    """

    kind: Kind
    items: tuple[str, ...]
    names: tuple[str, ...] = ()
    brackets: str = ""
    width: int = 0


def read_shape(text: str) -> Shape:
    r"""Read the outermost structure.

    >>> read_shape("\\{1, 2\\pm\\sqrt{3}\\}").items
    ('1', '2+\\sqrt{3}', '2-\\sqrt{3}')
    >>> read_shape("[0, \\frac{1}{2})").kind, read_shape("(x+1)").items
    ('tuple', ('x+1',))
    >>> read_shape("p=5,q=2; q=2,p=7").items
    ('(5,2)', '(7,2)')
    """
    text = _CASES.sub(lambda lines: _ROW_END.sub(";", lines[3]).replace("&", ""), text.strip())
    name, text = split_name(text)
    if match := _MATRIX.fullmatch(text):
        return _matrix(match[2])
    unions = split_top(text, _CUP)
    if len(unions) > 1:
        return Shape("union", tuple(unions))
    items = [item for item in split_top(text, SEPARATOR) if item]
    inner, brackets = inside(text)
    if len(items) > 1 or inner is None or (brackets != "{}" and len(expand_sign(text)) > 1):
        return _listed(items or [text], name)
    parts = [item for item in split_top(inner, SEPARATOR) if item]
    if brackets == "{}":
        return _listed(parts, name, "{}") if parts else Shape("value", ("\\emptyset",), (name,))
    return Shape("tuple", tuple(parts), brackets=brackets) if brackets and len(parts) > 1 else read_shape(inner)


def same_shape(predicted: Shape, gold: Shape, compare_values: Compare) -> bool | None:
    """Compare item by item; None if the shapes differ in a way that needs algebra to judge."""
    kinds = {predicted.kind, gold.kind}
    if len(predicted.items) > _MOST_ITEMS:
        return False
    if kinds == {"value"}:
        return compare_values(predicted.items[0], gold.items[0])
    if kinds == {"union"}:
        return _same_list(predicted, gold, compare_values) or None
    if "union" in kinds:
        return None
    if "matrix" in kinds:
        return _same_matrix(predicted, gold, compare_values)
    if "tuple" in kinds and "value" not in kinds:
        return _same_tuple(predicted, gold, compare_values)
    if "value" in kinds:
        return None if any(_needs_algebra(item) for item in predicted.items + gold.items) else False
    return _same_list(predicted, gold, compare_values)


def _same_tuple(predicted: Shape, gold: Shape, compare_values: Compare) -> bool:
    """Item by item. A list is a tuple without its brackets, named values are one in the order of their names.

    A set is none. With two items the brackets say which interval it may be.
    """
    sides = [side.brackets or "()" for side in (predicted, gold)]
    if "{}" in sides or len(predicted.items) != len(gold.items):
        return False
    is_interval = len(gold.items) == 2 and "list" not in (predicted.kind, gold.kind)
    if (is_interval and sides[0] != sides[1]) or ("list" in (predicted.kind, gold.kind) and _half_open(sides)):
        return False
    return all(compare_values(one, other) for one, other in zip(_in_order(predicted), _in_order(gold), strict=True))


def _half_open(sides: list[str]) -> bool:
    return any(side in ("[)", "(]") for side in sides)


def _in_order(shape: Shape) -> list[str]:
    named = _named(shape)
    return [named[name] for name in sorted(named)] if named else list(shape.items)


def _same_matrix(predicted: Shape, gold: Shape, compare_values: Compare) -> bool | None:
    """Entry by entry. One of a single row or column may be written as a tuple, a column of two as a binomial."""
    matrix, other = (predicted, gold) if predicted.kind == "matrix" else (gold, predicted)
    if other.kind == "matrix":
        if (other.width, len(other.items)) != (matrix.width, len(matrix.items)):
            return False
    elif other.kind == "tuple":
        if matrix.width not in (1, len(matrix.items)) or _half_open([other.brackets]):
            return False
    elif matrix.width == 1 and (column := _BINOMIAL.fullmatch(other.items[0])):
        other = Shape("matrix", tuple(split_top(column[1], _ARGUMENT_END)), width=1)
    else:
        return None if other.kind == "value" else False
    if len(other.items) != len(matrix.items):
        return False
    pairs = zip(matrix.items, other.items, strict=True)
    return all(compare_values(*(pair if matrix is predicted else pair[::-1])) for pair in pairs)


def _same_list(predicted: Shape, gold: Shape, compare_values: Compare) -> bool:
    """In any order. Each counts once, but in a list of the gold answer that repeats some, as the sides of a triangle.

    Values with names (`x = 1, y = 2`) go by name, or in the order given.
    """
    given, wanted = _named(predicted), _named(gold)
    if given and wanted:
        same_names = given.keys() == wanted.keys()
        return same_names and all(compare_values(given[name], wanted[name]) for name in wanted)
    ones, others = _each_once(predicted.items), _each_once(gold.items)
    if gold.kind == "list" and len(others) < len(gold.items):
        ones, others = list(predicted.items), list(gold.items)
    if len(ones) != len(others):
        return False
    if len({own.split("_")[0] for own in given or wanted}) > 1:  # `x_1 = 2, x_2 = 3` are two values of one unknown
        return all(compare_values(one, other) for one, other in zip(ones, others, strict=True))
    for one in ones:
        match = next((other for other in others if compare_values(one, other)), None)
        if match is None:
            return False
        others.remove(match)
    return True


def _named(shape: Shape) -> dict[str, str]:
    """Items by name, if each has one of its own."""
    distinct = len(set(shape.names)) == len(shape.items) and "" not in shape.names
    return dict(zip(shape.names, shape.items, strict=True)) if distinct else {}


def _each_once(items: tuple[str, ...]) -> list[str]:
    keys = [exact.rational(item) for item in items]
    texts = [re.sub(r"\s", "", item) for item in items]
    return list(
        {text if key is None else key: item for key, text, item in zip(keys, texts, items, strict=True)}.values()
    )


def _needs_algebra(item: str) -> bool:
    r"""Whether a value may stand for several: a relation, a set, an unknown `\pm`."""
    return bool(re.search(r"[<>=]|\\(?:le|ge|ne|in|pm|mp|begin|mathbb|setminus)(?![A-Za-z])", item))


def _matrix(body: str) -> Shape:
    rows = [split_top(row, re.compile("&")) for row in _ROW_END.split(body) if row.strip()]
    width = len(rows[0]) if rows and all(len(row) == len(rows[0]) for row in rows) else 0
    return Shape("matrix", tuple(cell for row in rows for cell in row), width=width)


def _listed(items: list[str], name: str, brackets: str = "") -> Shape:
    """A list, flat: a set in it gives its members, `\\pm` its values; one item alone is a value."""
    named = [split_name(item) for item in items]
    if name and not named[0][0]:
        named[0] = name, named[0][1]
    named = _as_tuples(named)
    flat = [(own, branch) for own, value in named for member in _members(value) for branch in expand_sign(member)]
    if len(flat) == 1 and len(items) == 1 and not (brackets and flat[0][1] == "\\emptyset"):
        name, text = flat[0]
        return Shape("value", (text,), (name,)) if inside(text)[0] is None else read_shape(text)
    is_set = brackets or any(_SIGN.search(value) for _, value in named)
    values, names = (tuple(column) for column in zip(*((value, own) for own, value in flat), strict=True))
    return Shape("set" if is_set else "list", values, names, "{}" if is_set else "")


def _as_tuples(named: list[tuple[str, str]]) -> list[tuple[str, str]]:
    r"""`x=1, y=2; x=3, y=4` as `(1,2)` and `(3,4)`: a group for each time that the names come round."""
    names = sorted({own for own, _ in named})
    groups = [dict(named[start : start + len(names)]) for start in range(0, len(named), len(names))]
    repeats = len(groups) > 1 or any(_SIGN.search(value) for _, value in named)
    if len(names) < 2 or "" in names or not repeats or any(sorted(group) != names for group in groups):
        return named
    return [("", f"({','.join(group[own] for own in names)})") for group in groups]


def _members(value: str) -> list[str]:
    inner, brackets = inside(value)
    return split_top(inner, SEPARATOR) if brackets == "{}" and inner and inner.strip() else [value]


def expand_sign(text: str) -> list[str]:
    r"""The values of an expression with `\pm` or `\mp`. Where both stand, upper signs go with upper ones.

    >>> expand_sign("\\pm 3"), expand_sign("(\\pm 1, \\mp 2)"), len(expand_sign("\\pm a \\pm b"))
    (['+ 3', '- 3'], ['(+ 1, - 2)', '(- 1, + 2)'], 4)
    """
    signs = _SIGN.findall(text)
    if not 0 < len(signs) <= _MOST_SIGNS:
        return [text.strip()]
    if len(set(signs)) == 2:
        choices = [["+" if sign == upper else "-" for sign in signs] for upper in ("pm", "mp")]
    else:
        choices = [list(choice) for choice in product("+-", repeat=len(signs))]
    pieces = _SIGN.split(text)[::2]
    return _each_once(tuple("".join(chain(*zip_longest(pieces, choice, fillvalue=""))).strip() for choice in choices))


def split_name(text: str) -> tuple[str, str]:
    r"""`x = 5` or `5 = x` as `x` and `5`; only a single name, of a variable, a function or a point, counts.

    What an unknown is called in `f(t) = 2t` does not matter: it is x.

    >>> split_name("f(t) = 2t"), split_name("5 = x"), split_name("f(t) = tx")
    (('f(x)', '2x'), ('x', '5'), ('f(t)', 'tx'))
    """
    match = _NAMED.match(text)
    name, rest = (match[1], text[match.end() :]) if match else ("", text)
    if match is None and (behind := _NAMED_BEHIND.fullmatch(text)):
        rest, name = behind[1], behind[2]
    if not name or not rest.strip() or _RELATION.search(split_top(rest, SEPARATOR)[0]):
        return "", text
    name, rest = re.sub(r"[\s{}]", "", name), rest.strip()
    bound = _BOUND.fullmatch(name)
    letters = set(_TOKEN.findall(rest))
    if bound and bound[2] in letters and "x" not in letters:
        rest = _TOKEN.sub(lambda token: "x" if token[0] == bound[2] else token[0], rest)
        name = f"{bound[1]}(x)"
    return name, rest


def same_name(one: str, other: str) -> bool:
    r"""Whether two names may mean the same: `m` and `m_\max` do, `x_1` and `x_2` do not."""
    return not (one and other) or one == other or one == other.split("_")[0] or other == one.split("_")[0]


def inside(text: str) -> tuple[str | None, str]:
    """The content of brackets around the whole text, and the brackets, blank for those of a group; None if there are
    none."""
    for opening, closing, brackets in (("\\{", "\\}", "{}"), ("(", "", "("), ("[", "", "["), ("{", "}", "")):
        if text.startswith(opening) and _closes_at_end(text):
            end = closing or text[-1]
            if text.endswith(end) and end in (closing, ")", "]"):
                return text[len(opening) : len(text) - len(end)], brackets if closing else brackets + end
    return None, ""


def _closes_at_end(text: str) -> bool:
    depth = 0
    for position, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSE)
        if depth == 0 and character in _CLOSE:
            return position == len(text) - 1
    return False


def split_top(text: str, separator: re.Pattern[str]) -> list[str]:
    """Pieces between separators that stand in no bracket, stripped."""
    depths, inner = [], 0
    for character in text:
        inner -= character in _CLOSE
        depths.append(inner)
        inner += character in _OPEN
    pieces, start = [], 0
    if "\\begin" not in text:
        for match in separator.finditer(text):
            if depths[match.start()] == 0:
                pieces.append(text[start : match.start()].strip())
                start = match.end()
    return [*pieces, text[start:].strip()]
