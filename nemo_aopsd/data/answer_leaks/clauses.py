"""The parts of a statement that may conclude something: without asides, and without the reasons after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nemo_aopsd.data.answer_leaks.text import Token, words

_REASONS = words("since because as where when whenever for if provided mod modulo")


def main_clauses(listed: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """The statement without asides in brackets, and what stands before its last words of reason ("since ...")."""
    whole = _without_asides(listed)
    yield whole
    reasons = [
        place
        for place, token in enumerate(whole)
        if token.kind == "word" and token.text.lower() in _REASONS and place and whole[place - 1].text not in ("=",)
    ]
    for place in reasons[-3:]:
        rest = whole[place:]
        if any(token.text in ("=", "is", "are") or token.kind == "num" for token in rest):
            yield whole[:place]


def _without_asides(listed: Sequence[Token]) -> Sequence[Token]:
    """Without brackets after a value or a mark that hold words or relations: `12 (since z = 3)`."""
    kept: list[Token] = []
    opened: list[int] = []
    for token in listed:
        kept.append(token)
        if token.text == "(":
            opened.append(len(kept) - 1)
        elif token.text == ")" and opened:
            start = opened.pop()
            inner = kept[start + 1 : -1]
            is_aside = any(
                (part.kind == "word" and len(part.text) > 3) or part.text in ("=", "<", ">", "\\le", "\\ge", "mod")
                for part in inner
            )
            if is_aside and inner[0].text not in ("=", ":") and kept[start].after_blank:
                del kept[start:]
    return kept
