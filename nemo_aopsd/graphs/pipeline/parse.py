r"""From a model's text to the JSON object that it was asked for.

Read past: thoughts, Markdown fences, prose around the object, and LaTeX with single backslashes, which JSON either
refuses (`\sqrt`) or silently turns into control characters (`\frac` begins with a form feed). Not read past: an
object that ends in the middle.
"""

from __future__ import annotations

import json
import re
from typing import Any

from nemo_aopsd.data.dag import Fault

_OPENING = re.compile(r'\{(?=\s*["}])')
_LONE_BACKSLASH = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_UNUSUAL = re.compile(r"[\x00-\x1f\u2212\ud800-\udfff]|\s\s|^\s|\s$")
_DEEPEST = 100  # levels of an answer that is worth reading; Python gives up at some hundreds
_CONTROL = {"\b": r"\b", "\f": r"\f", "\t": r"\t", "\r": r"\r"}
_EATEN = re.compile(r"[\b\f\t\r](?=[a-zA-Z])|\n(?=(?:abla|atural|e|eg|eq|exists|i|mid|ot|otin|u)(?![a-zA-Z]))")


def read_object(text: str, key: str) -> dict[str, Any] | Fault:
    """The last JSON object in `text` that has `key`, its strings cleaned; a Fault (unreadable, cut_short) if none.

    Keys of the object itself may be in capitals, or with blanks around them.

    >>> read_object('Sure: ```json\\n{"plan": ["use \\\\frac{1}{2}"]}\\n```', "plan")
    {'plan': ['use \\\\frac{1}{2}']}
    """
    text = text.rpartition("</think>")[2]
    for candidate in (text, _LONE_BACKSLASH.sub(_double, text)):
        found = [item for item in map(_with_plain_keys, _objects(candidate)) if key in item]
        if found and _is_deep(found[-1]):
            return Fault("unreadable", f"the JSON object is nested more than {_DEEPEST} levels deep")
        if found:
            return _clean(found[-1])
    if "{" in text and text.count("{") > text.count("}"):
        return Fault("cut_short", f"the JSON object does not end: ...{text[-60:]!r}")
    return Fault("unreadable", f"no JSON object with `{key}` in the answer: {text.strip()[:80]!r}")


def _double(match: re.Match[str]) -> str:
    return match[0] if match[1] else "\\\\"


def _objects(text: str) -> list[dict[str, Any]]:
    """Every outermost JSON object in `text`, in order."""
    found, position, decoder = [], 0, json.JSONDecoder(strict=False)
    while match := _OPENING.search(text, position):
        try:
            item, position = decoder.raw_decode(text, match.start())
        except json.JSONDecodeError:
            position = match.end()
        except RecursionError:  # a model that fell into repeating itself; each further brace would cost as much
            break
        else:
            found.append(item)
    return found


def _with_plain_keys(item: dict[str, Any]) -> dict[str, Any]:
    """A key that is right as it stands goes before one that has to be spelled anew."""
    return {key.strip().lower(): value for key, value in item.items()} | item


def _is_deep(value: Any) -> bool:
    level, depth = [value], 0
    while level and depth < _DEEPEST:
        depth += 1
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    return value


def clean_text(text: str) -> str:
    r"""One line; backslashes that JSON ate restored, unicode minus made `-`, half a surrogate pair made U+FFFD.

    >>> clean_text("\frac{1}{2} \n \theta \u2212 1")
    '\\frac{1}{2} \\theta - 1'
    """
    if not _UNUSUAL.search(text):
        return text
    text = _EATEN.sub(lambda match: _CONTROL.get(match[0], r"\n"), text)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\u2212", "-")
    return " ".join(text.split())


def read_checkpoints(answer: dict[str, Any]) -> dict[str, Any] | Fault:
    """`{"checkpoints": [{"id", "statement", "requires"}]}` as `{"nodes", "edges"}`, ids as strings, or a Fault.

    >>> read_checkpoints({"checkpoints": [{"id": 1, "statement": "x = 2", "requires": []}]})
    {'nodes': [{'id': '1', 'statement': 'x = 2'}], 'edges': []}
    """
    checkpoints = answer["checkpoints"]
    if not isinstance(checkpoints, list):
        return Fault("malformed", f"`checkpoints` must be a list, got {str(checkpoints)[:80]}")
    nodes, edges = [], []
    for index, item in enumerate(checkpoints, start=1):
        if not isinstance(item, dict) or not isinstance(item.get("statement"), str) or not _is_id(item.get("id")):
            return Fault("malformed", f"checkpoint {index}: expected `id`, `statement`, `requires`: {str(item)[:80]}")
        requires = read_ids(item.get("requires"))
        if requires is None:
            return Fault("malformed", f"checkpoint {index}: `requires` must be a list of ids: {str(item)[:80]}")
        nodes.append({"id": str(item["id"]), "statement": item["statement"]})
        edges += [[parent, str(item["id"])] for parent in dict.fromkeys(requires)]
    return {"nodes": nodes, "edges": edges}


def read_ids(value: Any) -> list[str] | None:
    """A list of ids as strings; None if it is anything else."""
    if not isinstance(value, list) or not all(_is_id(item) for item in value):
        return None
    return [str(item) for item in value]


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)
