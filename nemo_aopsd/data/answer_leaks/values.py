"""Which values of a statement stand for themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nemo_aopsd.data.answer_leaks.arithmetic import Undecided
from nemo_aopsd.data.answer_leaks.reader import BINDING, Reader, Value
from nemo_aopsd.data.answer_leaks.text import Token, words

_SHORT_UNITS = words("cm mm km m s g kg ft in h L lb of or as by if so at on to is we it")
_CHANGES_VALUE = words(
    "times more less fewer mod modulo plus minus divided multiplied dozen dozens hundred thousand million billion half"
    " halves third thirds squared cubed factorial choose"
)


def find_values(listed: Sequence[Token], reader: Reader) -> Iterator[Value]:
    """Values in order that stand for themselves: no operator, index or name is bound to them on either side.

    Raises Undecided where the budget of steps ends.
    """
    position = 0
    while position < len(listed):
        if reader.is_spent:
            raise Undecided
        if not reader.knows(listed[position]) or not _may_start(listed, position):
            position += 1
            continue
        value = reader.read(position)
        if value is None:
            position += 1
            continue
        if not _is_bound(listed, value.end):
            yield value
        position = value.end


def _may_start(listed: Sequence[Token], position: int) -> bool:
    token = listed[position]
    if token.kind in ("edge", "end") or token.text in ("!", "^", "_", "%", "*", "/", ")", "]", "}"):
        return False
    if not position:
        return True
    before = listed[position - 1]
    if before.kind in ("num", "word") and not token.after_blank:
        return False
    if token.text in ("-", "+"):
        is_name = before.kind == "word" and len(before.text) < 3 and before.text not in _SHORT_UNITS
        if before.kind == "num" or is_name or before.text in (")", "]", "}"):
            return False
    if before.text == "." and not token.after_blank and position > 1 and listed[position - 2].kind == "num":
        return False
    return before.text not in BINDING and before.text != "%" and before.kind != "num"


def _is_bound(listed: Sequence[Token], end: int) -> bool:
    has_edge = False
    while end < len(listed) and listed[end].kind == "edge":
        has_edge, end = True, end + 1
    if end == len(listed):
        return False
    token = listed[end]
    if token.kind == "word":
        if token.text in _CHANGES_VALUE:
            return True
        return not has_edge and len(token.text) < 3 and token.text not in _SHORT_UNITS
    if token.kind == "num":
        return not has_edge
    if token.text == "." and end + 1 < len(listed):
        return listed[end + 1].kind == "num" and not listed[end + 1].after_blank
    return token.text in BINDING or (token.text in ("(", "[", "{") and not has_edge)
