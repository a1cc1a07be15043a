"""A statement held against the answer: what it claims, and what it ends in."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from nemo_aopsd.data.answer_leaks.answer import Answer, is_same, read_answer
from nemo_aopsd.data.answer_leaks.arithmetic import Undecided
from nemo_aopsd.data.answer_leaks.clauses import main_clauses
from nemo_aopsd.data.answer_leaks.reader import Reader, Value
from nemo_aopsd.data.answer_leaks.text import Token, clean, tokens, words
from nemo_aopsd.data.answer_leaks.values import find_values
from nemo_aopsd.data.dag import is_no_claim, words_answer

_CONCLUSIONS = words(
    r"= : \approx \equiv \in is are be was were becomes become equal equals gives give yields yield giving yielding"
    " totals leaves obtain obtains get gets"
)
_FILLERS = words(
    "to exactly just only precisely simply then thus therefore hence indeed the a an value number integer fraction"
    r" total of about approximately also , \{ { ( ["
)
_CLAIM_FILLERS = words("is are = : equals equal must be comes out as here so * \" ' ` final") | {
    word for word in _FILLERS if word.isalpha() or word == ","
}
_SEPARATORS = words(r", ; and or = ( ) [ ] { } \{ \}")
_CLOSING = words(r""". , ; : ! ? * ) ] } \} " '""")
_NUMBER_LIKE = re.compile(r"\d|\\(?:pi|infty)|[\u00bc-\u00be\u2150-\u215f]|\be\b|\bi\b")
_MOST_FILLERS, _MOST_WORDS_AFTER = 6, 4


def judge_statement(statement: str, answer: str, *, is_last: bool) -> bool | None:
    """`states_answer`, or None if that cannot be decided: a number is too large, or the statement too long to read."""
    if words_answer(statement, answer, is_last=is_last):
        return True
    wanted = read_answer(answer)
    has_claim = "answer" in statement.lower() or "boxed" in statement
    if not has_claim and not is_last and not wanted.is_peculiar:
        return False
    if wanted.kind != "text" and not wanted.symbols and not _NUMBER_LIKE.search(statement):
        return False
    listed = tokens(clean(statement, keep_commas=wanted.keeps_commas))
    verdicts: Iterator[bool | None] = iter([_Reading(listed, wanted).is_claimed()] if has_claim else [])
    if is_last or wanted.is_peculiar:
        clauses = (_Reading(clause, wanted).concludes(is_last=is_last) for clause in main_clauses(listed))
        verdicts = itertools.chain(verdicts, clauses)
    return _first_decided(verdicts)


def _first_decided(verdicts: Iterator[bool | None]) -> bool | None:
    """True if one is, else None if one is, else False."""
    found: bool | None = False
    for verdict in verdicts:
        if verdict:
            return True
        found = None if verdict is None else found
    return found


class _Reading:
    """A clause with its values, held against the answer."""

    def __init__(self, listed: Sequence[Token], wanted: Answer) -> None:
        self.listed, self.wanted = listed, wanted
        self.values: list[Value] = []
        self.is_cut = False
        if wanted.kind == "text":
            return
        try:
            for value in find_values(listed, Reader(listed, wanted.symbols)):
                self.values.append(value)
        except Undecided:
            self.is_cut = True

    def is_claimed(self) -> bool | None:
        """An explicit claim: "the answer is ...", a box."""
        verdicts = []
        for index, token in enumerate(self.listed):
            is_answer = token.kind == "word" and token.text.lower() in ("answer", "answers")
            if not is_answer and token.text not in ("\\boxed", "\\fbox"):
                continue
            if is_answer and is_no_claim(" ".join(word.text for word in self.listed[max(0, index - 8) : index])):
                continue
            place = index + is_answer
            for _ in range(_MOST_FILLERS):
                if place < len(self.listed) and (
                    self.listed[place].kind == "edge"
                    or (is_answer and self.listed[place].text.lower() in _CLAIM_FILLERS)
                ):
                    place += 1
            verdicts.append(self._compare_from(place))
        return _first_decided(iter(verdicts))

    def concludes(self, *, is_last: bool) -> bool | None:
        """The clause ends in the answer, or, if it is the last, names it."""
        if self.wanted.kind == "text":
            return self._ends_in_text()
        verdicts = []
        end = self._end()
        if self.wanted.kind in ("list", "tuple"):
            if self.values and self._is_end(self.values[-1].end, end):
                verdicts.append(self._compare_run(self._run_before(len(self.values) - 1)))
        else:
            if self.values and self._is_end(self.values[-1].end, end) and self._is_concluded(self.values[-1].start):
                verdicts.append(self._same(self.values[-1]))
            if is_last:
                verdicts += [self._same(value) for value in self.values if self._is_named_after(value)]
                if self.wanted.is_peculiar:
                    verdicts += [self._same(value) for value in self.values if not self._is_left_side(value)]
        if self.is_cut:
            verdicts.append(None)
        return _first_decided(iter(verdicts))

    def _compare_from(self, place: int) -> bool | None:
        """The value that begins at a token, or the list of values from there."""
        for index, value in enumerate(self.values):
            if value.start >= place:
                between = self.listed[place : value.start]
                if not all(token.kind == "edge" or token.text in _SEPARATORS or _is_name(token) for token in between):
                    return False
                if self.wanted.kind == "value":
                    return self._same(value) if value.start == place else False
                return self._compare_run(self._run_after(index))
        return None if self.is_cut else False

    def _same(self, value: Value) -> bool | None:
        return is_same(value, self.wanted.values[0], self.wanted.is_percent)

    def _compare_run(self, run: list[Value]) -> bool | None:
        """Values in a row against those of a list, in any order, or of a tuple."""
        wanted = self.wanted
        if wanted.kind == "tuple":
            if len(run) < len(wanted.values) or not self._has_brackets(run[-len(wanted.values)].start, run[-1].end):
                return False
            pairs = zip(run[-len(wanted.values) :], wanted.values, strict=True)
            verdicts = [is_same(value, other, is_percent=False) for value, other in pairs]
            return None if None in verdicts and False not in verdicts else all(verdicts)
        found = [[is_same(value, other, is_percent=False) for other in wanted.values] for value in run]
        extra = any(not any(row) for row in found)
        missing = any(not any(column) for column in zip(*found, strict=True))
        if not extra and not missing:
            return True
        return None if any(verdict is None for row in found for verdict in row) else False

    def _has_brackets(self, start: int, end: int) -> bool:
        """Those of the answer, if there are any; they matter to an interval."""
        before = self.listed[start - 1].text if start else ""
        after = self.listed[end].text if end < len(self.listed) else ""
        if before not in ("(", "[") and after not in (")", "]"):
            return self.wanted.brackets == "()"
        return before + after == self.wanted.brackets

    def _run_before(self, last: int) -> list[Value]:
        first = last
        while first and self._is_separated(self.values[first - 1], self.values[first]):
            first -= 1
        return self.values[first : last + 1]

    def _run_after(self, first: int) -> list[Value]:
        last = first
        while last + 1 < len(self.values) and self._is_separated(self.values[last], self.values[last + 1]):
            last += 1
        return self.values[first : last + 1]

    def _is_separated(self, one: Value, other: Value) -> bool:
        between = self.listed[one.end : other.start]
        return any(token.text in (",", ";", "and", "or") for token in between) and all(
            token.kind == "edge" or token.text in _SEPARATORS or _is_name(token) for token in between
        )

    def _end(self) -> int:
        end = len(self.listed)
        while end and (self.listed[end - 1].kind == "edge" or self.listed[end - 1].text in _CLOSING):
            end -= 1
        return end

    def _is_end(self, place: int, end: int) -> bool:
        """Nothing but a few words (units, say) and marks stands between."""
        rest = [token for token in self.listed[place:end] if token.kind != "edge" and token.text not in _CLOSING]
        return len(rest) <= _MOST_WORDS_AFTER and all(token.kind == "word" for token in rest)

    def _is_concluded(self, start: int) -> bool:
        """An equals sign, "is" or the like stands before, with nothing but fillers between."""
        for back in range(start - 1, max(-1, start - 2 - _MOST_FILLERS), -1):
            token = self.listed[back]
            if token.text.lower() in _CONCLUSIONS and token.kind != "edge":
                return not self._is_no_conclusion(back)
            if token.kind != "edge" and token.text.lower() not in _FILLERS:
                return False
        return False

    def _is_no_conclusion(self, place: int) -> bool:
        """`!=`, `<=`, or the colon of a ratio."""
        token, before = self.listed[place], self.listed[place - 1] if place else None
        if before is None:
            return False
        if token.text == ":":
            return before.kind == "num" and not token.after_blank
        return token.text == "=" and before.text in ("!", "<", ">", "\\not") and not token.after_blank

    def _is_left_side(self, value: Value) -> bool:
        place = value.end
        while place < len(self.listed) and self.listed[place].kind == "edge":
            place += 1
        return place < len(self.listed) and self.listed[place].text == "="

    def _is_named_after(self, value: Value) -> bool:
        """`11 = m + n` at the end: on the right is a formula and nothing else."""
        if not self._is_left_side(value):
            return False
        right = self.listed[value.end :]
        marks = [token for token in right if token.text in _CONCLUSIONS]
        has_words = any(token.kind == "word" and len(token.text) > 3 for token in right)
        return len(marks) == 1 and not has_words and any(token.kind in ("word", "cmd") for token in right)

    def _ends_in_text(self) -> bool:
        listed = [token for token in self.listed[: self._end()] if token.kind != "edge"]
        size = len(self.wanted.texts)
        if not size or [token.text for token in listed[-size:]] != list(self.wanted.texts):
            return False
        return size == len(listed) or listed[-size - 1].text.lower() in _CONCLUSIONS | {",", "so", "that"}


def _is_name(token: Token) -> bool:
    return (token.kind == "word" and len(token.text) <= 2) or token.text == "_"
