r"""From a model's answer to the requested JSON object.

Read past: Markdown fences, prose around the object, and LaTeX with single backslashes, which JSON either
refuses (`\sqrt`) or silently turns into control characters (`\frac` begins with a form feed). Not read past: an
object that ends in the middle.
"""

import json
import re
from typing import Any

from nemo_aopsd.data.dag import Fault

_OPENING = re.compile(r'\{(?=\s*["}])')
_LONE_BACKSLASH = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_DEEPEST = 100  # levels of an answer that is worth reading
_CONTROL = {"\b": r"\b", "\f": r"\f", "\t": r"\t", "\r": r"\r"}
_EATEN = re.compile(r"[\b\f\t\r](?=[a-zA-Z])|\n(?=(?:abla|atural|e|eg|eq|exists|i|mid|ot|otin|u)(?![a-zA-Z]))")


def read_object(text: str, key: str) -> dict[str, Any] | Fault:
    """The last JSON object in `text` that has `key`, its strings cleaned; a Fault (unreadable, cut_short) if none.

    Keys of the object itself may be in capitals, or with blanks around them.

    >>> read_object('Sure: ```json\\n{"plan": ["use \\\\frac{1}{2}"]}\\n```', "plan")
    {'plan': ['use \\\\frac{1}{2}']}
    """
    try:
        for candidate in (text, _LONE_BACKSLASH.sub(lambda found: found[0] if found[1] else r"\\", text)):
            found = [item for item in map(_with_plain_keys, _objects(candidate)) if key in item]
            if found:
                return _clean(found[-1])
    except RecursionError:  # a model that fell into repeating itself
        return Fault("unreadable", "the JSON object is nested too deeply")
    if "{" in text and text.count("{") > text.count("}"):
        return Fault("cut_short", f"the JSON object does not end: ...{text[-60:]!r}")
    return Fault("unreadable", f"no JSON object with `{key}` in the answer: {text.strip()[:80]!r}")


def _objects(text: str) -> list[dict[str, Any]]:
    """Every outermost JSON object in `text`, in order."""
    found, position, decoder = [], 0, json.JSONDecoder(strict=False)
    while match := _OPENING.search(text, position):
        try:
            item, position = decoder.raw_decode(text, match.start())
        except json.JSONDecodeError:
            position = match.end()
        else:
            found.append(item)
    return found


def _with_plain_keys(item: dict[str, Any]) -> dict[str, Any]:
    """A key that is right as it stands goes before one that has to be spelled anew."""
    return {key.strip().lower(): value for key, value in item.items()} | item


def _clean(value: Any, levels: int = _DEEPEST) -> Any:
    if not levels:
        raise RecursionError
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_clean(item, levels - 1) for item in value]
    if isinstance(value, dict):
        return {key: _clean(item, levels - 1) for key, item in value.items()}
    return value


def clean_text(text: str) -> str:
    r"""One line; backslashes that JSON ate restored, unicode minus made `-`, half a surrogate pair made U+FFFD.

    >>> clean_text("\frac{1}{2} \n \theta \u2212 1")
    '\\frac{1}{2} \\theta - 1'
    """
    text = _EATEN.sub(lambda match: _CONTROL.get(match[0], r"\n"), text)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\u2212", "-")
    return " ".join(text.split())
