r"""The shape of an answer: a list or set, a tuple or interval, a union, or one value. Shapes are compared here, values
by `compare_values`; `\pm` stands for two values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["value", "list", "tuple", "union"]

_OPEN, _CLOSE = "([{", ")]}"
_SEPARATOR = re.compile(r"[,;]|(?<![A-Za-z])(?:and|or)(?![a-z])")
_NAME = r"(?:[A-Za-z]|\\[a-z]+)(?:_(?:\w|\{\w+\}))?'?"
_NAMED = re.compile(
    rf"\s*({_NAME}(?:\((?:{_NAME}|-?\d+)\))?|\(\s*{_NAME}(?:\s*,\s*{_NAME})+\s*\))\s*(?:=|\\in(?![a-z]))\s*(?!=)"
)
_SIGN = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_VECTOR = re.compile(r"\\begin\{([pb]?matrix)\}((?:(?!\\begin).)*)\\end\{\1\}", re.DOTALL)
_MOST_ITEMS = 200


@dataclass(frozen=True, slots=True)
class Shape:
    """`brackets` are those of a tuple, `names` what stood before `=` of each item (blank if nothing did)."""

    kind: Kind
    items: tuple[str, ...]
    names: tuple[str, ...] = ()
    brackets: str = ""


def read_shape(text: str) -> Shape:
    r"""Read the outermost structure.

    >>> read_shape("\\{1, 2\\pm\\sqrt{3}\\}").items
    ('1', '2+\\sqrt{3}', '2-\\sqrt{3}')
    >>> read_shape("[0, \\frac{1}{2})").kind, read_shape("(x+1)").items
    ('tuple', ('x+1',))
    """
    text = text.strip()
    name, text = _split_name(text)
    unions = _split_top(text, re.compile(r"\\cup(?![A-Za-z])"))
    if len(unions) > 1:
        return Shape("union", tuple(unions))
    items = [item for item in _split_top(text, _SEPARATOR) if item]
    if len(items) > 1:
        return _listed(items, name)
    inner, brackets = _inside(text)
    if inner is None:
        return _listed([text], name)
    parts = [item for item in _split_top(inner, _SEPARATOR) if item]
    if brackets == "{}":
        return _listed(parts or ["\\emptyset"], name)
    return Shape("tuple", tuple(parts), brackets=brackets) if len(parts) > 1 else read_shape(inner)


def same_shape(predicted: Shape, gold: Shape, compare_values: Callable[[str, str], bool]) -> bool | None:
    """Compare item by item; None if the shapes differ in a way that needs algebra to judge."""
    kinds = {predicted.kind, gold.kind}
    if kinds == {"value"}:
        return compare_values(predicted.items[0], gold.items[0])
    if len(predicted.items) > _MOST_ITEMS:
        return False
    if kinds == {"tuple"}:
        return _same_tuple(predicted, gold, compare_values)
    if kinds in ({"list"}, {"union"}):
        return _same_list(predicted, gold, compare_values)
    if kinds == {"tuple", "value"}:
        return _same_vector(predicted, gold, compare_values)
    if kinds == {"list", "value"} and not any(_needs_algebra(item) for item in predicted.items + gold.items):
        return False
    return None


def _same_tuple(predicted: Shape, gold: Shape, compare_values: Callable[[str, str], bool]) -> bool:
    brackets_matter = len(gold.items) == 2 and gold.brackets != predicted.brackets
    if brackets_matter or len(predicted.items) != len(gold.items):
        return False
    return all(compare_values(one, other) for one, other in zip(predicted.items, gold.items, strict=True))


def _same_vector(predicted: Shape, gold: Shape, compare_values: Callable[[str, str], bool]) -> bool | None:
    """A matrix of one column or one row against a list in `()` or `[]`; None if neither is such a matrix."""
    (matrix,), brackets = (gold.items, predicted.brackets) if gold.kind == "value" else (predicted.items, gold.brackets)
    components = _components(matrix)
    if not components or brackets not in ("()", "[]"):
        return None
    vector = Shape("tuple", components, brackets=brackets)
    return _same_tuple(*((predicted, vector) if gold.kind == "value" else (vector, gold)), compare_values)


def _components(matrix: str) -> tuple[str, ...]:
    r"""Those of a single column or row; nothing if it is neither.

    >>> _components("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"), _components("\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}")
    (('1', '2'), ())
    """
    match = _VECTOR.fullmatch(matrix)
    rows = [row.strip() for row in match[2].split("\\\\")] if match else []
    rows = rows[:-1] if rows and not rows[-1] else rows
    cells = rows[0].split("&") if len(rows) == 1 else rows
    return () if any("&" in cell for cell in cells) else tuple(cell.strip() for cell in cells)


def _same_list(predicted: Shape, gold: Shape, compare_values: Callable[[str, str], bool]) -> bool:
    """In any order, each once. Values with names (`x = 1, y = 2`) go by name, or in the order given."""
    given, wanted = _named(predicted), _named(gold)
    if given and wanted:
        same_names = given.keys() == wanted.keys()
        return same_names and all(compare_values(given[name], wanted[name]) for name in wanted)
    ones, others = _each_once(predicted.items), _each_once(gold.items)
    if len(ones) != len(others):
        return False
    if given or wanted:
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
    return list({re.sub(r"\s", "", item): item for item in items}.values())


def _needs_algebra(item: str) -> bool:
    r"""Whether a value may stand for several: a relation, a set, an unknown `\pm`."""
    return bool(re.search(r"[<>=]|\\(?:le|ge|ne|in|pm|mp|begin|mathbb|setminus)(?![A-Za-z])", item))


def _listed(items: list[str], name: str) -> Shape:
    """A list, flat: a set in it gives its members, `\\pm` two; one item alone is a value."""
    flat: list[tuple[str, str]] = []
    for position, item in enumerate(items):
        own_name, value = _split_name(item)
        own_name = own_name or (name if position == 0 else "")
        inner, brackets = _inside(value)
        members = _split_top(inner, _SEPARATOR) if brackets == "{}" and inner and inner.strip() else [value]
        flat += [(own_name, branch) for member in members for branch in expand_sign(member)]
    if len(flat) == 1 and len(items) == 1:
        return Shape("value", (flat[0][1],), (flat[0][0],))
    return Shape("list", tuple(value for _, value in flat), tuple(own for own, _ in flat))


def expand_sign(text: str) -> list[str]:
    r"""Both values of an expression with one `\pm` or `\mp`; the text itself if there is none, or more than one.

    >>> expand_sign("\\pm 3"), expand_sign("\\pm a \\pm b")
    (['+ 3', '- 3'], ['\\pm a \\pm b'])
    """
    if len(_SIGN.findall(text)) != 1:
        return [text.strip()]
    return [_SIGN.sub(sign, text, count=1).strip() for sign in "+-"]


def _split_name(text: str) -> tuple[str, str]:
    r"""`x = 5` as `x` and `5`; only a single name, of a variable, a function or a point, counts."""
    match = _NAMED.match(text)
    rest = text[match.end() :] if match else ""
    if match is None or not rest or re.search(r"[=<>]|\\(?:le|ge|ne|approx)(?![a-z])", _split_top(rest, _SEPARATOR)[0]):
        return "", text
    return re.sub(r"[\s{}]", "", match[1]), rest.strip()


def _inside(text: str) -> tuple[str | None, str]:
    """The content of brackets that enclose the whole text, and the brackets; None if there are none."""
    for opening, closing, brackets in (("\\{", "\\}", "{}"), ("(", "", "("), ("[", "", "["), ("{", "}", "{}")):
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


def _split_top(text: str, separator: re.Pattern[str]) -> list[str]:
    """Pieces between separators that stand in no bracket, stripped."""
    depths, depth = [], 0
    for character in text:
        depth -= character in _CLOSE
        depths.append(depth)
        depth += character in _OPEN
    pieces, start = [], 0
    if "\\begin" not in text:
        for match in separator.finditer(text):
            if depths[match.start()] == 0:
                pieces.append(text[start : match.start()].strip())
                start = match.end()
    return [*pieces, text[start:].strip()]
