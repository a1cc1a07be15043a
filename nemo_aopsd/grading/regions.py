r"""Sets of real numbers: intervals, unions, `x < 3 \text{ or } x = 5`, `\mathbb{R} \setminus \{2\}` are one kind.

A condition on one unknown stands for the set of its solutions. Runs in the grading process only.
"""

import re
from typing import Any

from sympy import FiniteSet, Intersection, Interval, S, Union, oo

from nemo_aopsd.grading.formula import parse, same_number
from nemo_aopsd.grading.structure import SEPARATOR, inside, same_name, split_top

_LOOKS_LIKE = re.compile(
    r"[<>]|\\(?:le|ge|ne|cup|cap|setminus|backslash|infty|mathbb)(?![A-Za-z])|^\[[^]]*\)$|^\([^)]*\]$"
)
_RELATION = re.compile(r"(\\(?:le|ge|ne|lt|gt)(?![A-Za-z])|<=|>=|!=|[<>=])")
_MEMBER = re.compile(r"(\\?[A-Za-z]+(?:_\w)?(?:\([a-z]\))?)\s*\\in(?![a-z])\s*(.*)", re.DOTALL)
_BUILDER = re.compile(  # `\{x \in \mathbb{R} \mid x < 3\}`
    r"\\\{\s*(\\?[A-Za-z]+(?:_\w)?)\s*(?:\\in(?![a-z])([^|:\\]*|\s*\\mathbb\{R\}\s*))?"
    r"(?:[|:]|\\(?:mid|vert|colon)(?![a-z]))(.*)\\\}",
    re.DOTALL,
)
_UNKNOWN = re.compile(r"\\?[A-Za-z]+(?:_\w)?(?:\([a-z]\))?")
_OR = re.compile(r"(?<![A-Za-z\\])or(?![a-z])|\\(?:lor|vee)(?![A-Za-z])")
_AND = re.compile(r"(?<![A-Za-z\\])and(?![a-z])|\\(?:land|wedge)(?![A-Za-z])")
_WITHOUT = re.compile(r"\\(?:setminus|backslash)(?![A-Za-z])|-(?=\s*\\\{)")
_EXCLUDED = re.compile(r".*\\ne(?![a-z])")  # `x \ne 0, 1`
_OPERATIONS = {"\\cup": "union", "\\cap": "intersect"}
_TURNED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le", "\\ne": "\\ne", "=": "="}
_SPELLED = {"<=": "\\le", ">=": "\\ge", "!=": "\\ne", "\\lt": "<", "\\gt": ">"}


class _NoRegion(Exception):
    """The text describes no set of real numbers that can be worked out."""


def same_region(predicted: str, gold: str) -> bool | None:
    """Whether two texts describe the same set; None unless one of them looks like a region and both can be read."""
    if not (_LOOKS_LIKE.search(predicted) or _LOOKS_LIKE.search(gold)):
        return None
    names: list[set[str]] = [set(), set()]
    try:
        given, wanted = (_read(text.strip(), found) for text, found in zip((predicted, gold), names, strict=True))
    except _NoRegion:
        return None
    if any(len(found) > 1 for found in names) or not all(
        same_name(one, other) for one in names[0] for other in names[1]
    ):
        return False
    return _same_set(given, wanted)


def _same_set(one: Any, other: Any) -> bool:
    if S.EmptySet in (one, other):
        return bool(one == other)
    pieces = [sorted(side.args if isinstance(side, Union) else [side], key=_place) for side in (one, other)]
    return len(pieces[0]) == len(pieces[1]) and all(map(_same_piece, *pieces))


def _place(piece: Any) -> float:
    return float(piece.inf.evalf()) if piece.inf.is_number else 0.0


def _same_piece(one: Any, other: Any) -> bool:
    if isinstance(one, Interval) and isinstance(other, Interval):
        ends = (one.left_open, one.right_open) == (other.left_open, other.right_open)
        return bool(ends) and same_number(one.start, other.start) and same_number(one.end, other.end)
    if isinstance(one, FiniteSet) and isinstance(other, FiniteSet):
        members = list(zip(one.args, other.args, strict=False))
        return len(one.args) == len(other.args) and all(same_number(*pair) for pair in members)
    return bool(one == other)


def _read(text: str, names: set[str]) -> Any:
    if (builder := _BUILDER.fullmatch(text)) and inside(text)[1] == "{}":
        bound: set[str] = set()  # what the unknown is called in there does not matter
        found = _read((builder[2] or "\\mathbb{R}").strip(), names) & _read(builder[3].strip(), bound)
        if bound != {builder[1]}:
            raise _NoRegion
        return found
    if member := _MEMBER.fullmatch(text):
        names.add(member[1])
        return _read(member[2], names)
    for words, join in ((_OR, Union), (_AND, Intersection)):
        if len(parts := split_top(text, words)) > 1:
            return join(*(_read(part, names) for part in parts if part))
    if len(parts := [part for part in split_top(text, SEPARATOR) if part]) > 1:
        if excluded := _EXCLUDED.match(parts[0]):
            parts = [part if _RELATION.search(part) else excluded[0] + part for part in parts]
        sets = [_read(part, names) for part in parts]
        both = Intersection(*sets)
        return Union(*sets) if both is S.EmptySet else both
    for sign, method in _OPERATIONS.items():
        if len(parts := split_top(text, re.compile(re.escape(sign) + "(?![A-Za-z])"))) > 1:
            first, *rest = [_read(part, names) for part in parts]
            for part in rest:
                first = getattr(first, method)(part)
            return first
    if len(parts := split_top(text, _WITHOUT)) == 2:
        return _read(parts[0], names) - _read(parts[1], names)
    terms = [part.strip() for part in _RELATION.split(text)]
    return _condition(terms, names) if len(terms) > 1 else _plain(text, names)


def _plain(text: str, names: set[str]) -> Any:
    """An interval, a set of numbers, or a named one."""
    if re.fullmatch(r"\\mathbb\s*\{?R\}?|\\R", text):
        return S.Reals
    inner, brackets = inside(text)
    items = split_top(inner, SEPARATOR) if inner else []
    if brackets == "{}" and items:
        return FiniteSet(*map(_number, items))
    if len(items) == 2 and brackets:
        start, end = map(_number, items)
        if (end - start).is_extended_positive is not True:
            raise _NoRegion
        return Interval(start, end, brackets[0] == "(", brackets[1] == ")")
    if inner is not None and len(items) == 1:
        return _read(items[0], names)
    raise _NoRegion


def _condition(terms: list[str], names: set[str]) -> Any:
    """`a < x \\le b`, link by link; in each the unknown stands alone on one side."""
    found = S.Reals
    for left, sign, right in zip(terms[::2], terms[1::2], terms[2::2], strict=False):
        sign = _SPELLED.get(sign, sign)
        if not _UNKNOWN.fullmatch(left):
            left, sign, right = right, _TURNED[sign], left
        if not _UNKNOWN.fullmatch(left) or left == "\\infty":
            raise _NoRegion
        names.add(left)
        found = found.intersect(_half_line(sign, _number(right)))
    return found


def _half_line(sign: str, bound: Any) -> Any:
    match sign:
        case "<" | "\\le":
            return Interval(-oo, bound, True, sign == "<")
        case ">" | "\\ge":
            return Interval(bound, oo, sign == ">", True)
        case "\\ne":
            return S.Reals - FiniteSet(bound)
    return FiniteSet(bound)


def _number(text: str) -> Any:
    number = parse(text.removeprefix("+"))
    if getattr(number, "is_extended_real", None) is not True or number.free_symbols:
        raise _NoRegion
    return number
