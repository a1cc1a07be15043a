"""A resolved config against its schema: reports every key that is unknown, of a wrong type, or out of range at once.

pydantic reads the config as JSON, so that it does not take 1, true and "1" for each other. Messages describe what was
expected by the JSON schema of the same classes, as docs/config.md and editors do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from nemo_aopsd.config.keys import MOST, Fault, Tree, every_key, likely, select
from nemo_aopsd.config.nemo_rl_keys import BLOCKS, Open, RunKeys
from nemo_aopsd.config.rules import contradictions, evaluation_faults, with_scoring
from nemo_aopsd.config.schema import CHOICES, SINGLE_PRECISION, AOPSDConfig, EvaluationConfig
from nemo_aopsd.errors import UserError, nearest

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
_ABSENT = object()
_OF_TEXT = ("int_type", "float_type", "bool_type")  # text where pydantic expects one of these may still spell it


@dataclass(frozen=True)
class OurKeys(Open):
    """A file that only changes our block, such as a method's."""

    aopsd: AOPSDConfig = field(default_factory=AOPSDConfig)


def check_run(tree: Tree) -> tuple[RunKeys | None, list[Fault]]:
    """The typed keys of a whole config, and what cannot work: each a dotted key, or "" of a default, and a sentence."""
    run, faults = validate(RunKeys, tree)
    wrong = [key for key, _ in faults]
    if run is None:  # the rules see defaults in place of what is wrong
        run, _ = validate(RunKeys, _without(tree, wrong))
    if run is not None:
        run = with_scoring(run, tree)
        for key, text in contradictions(run):
            is_default = select(tree, key, _ABSENT) is _ABSENT  # which no line of a file has set
            if key not in wrong:
                faults.append(("", f"the default of `{key}` {text}") if is_default else (key, f"`{key}` {text}"))
    return run, faults


def check_block(tree: Tree) -> tuple[AOPSDConfig | None, list[Fault]]:
    """The `aopsd:` block of a file by itself. Interpolation is left alone: other files may give it a value."""
    ours, faults = validate(OurKeys, {"aopsd": tree.get("aopsd", {})})
    kept = [(key, text) for key, text in faults if "${" not in str(select(tree, key))]
    return ours and ours.aopsd, kept


def check_evaluation(evaluation: EvaluationConfig) -> None:
    """Raise UserError for settings of evaluation that a config would be refused for."""
    _, faults = check_block({"aopsd": {"evaluation": asdict(evaluation)}})
    if lines := faults or [(key, f"`{key}` {text}") for key, text in evaluation_faults(evaluation)]:
        raise UserError("\n".join(message for _, message in lines))


def find_non_blocks(tree: Tree) -> Iterator[Fault]:
    """What stands where a block must stand; interpolation is left alone until it is resolved."""
    for key in BLOCKS:
        value = select(tree, key)
        if value is not None and not isinstance(value, dict) and not (isinstance(value, str) and "${" in value):
            hint = _meant(key, ["data_path"], value) if key == "data.train" else ""
            yield key, f"`{key}` must be a block of `key: value` lines; got {value!r}.{hint}"


def validate(kind: type[T], tree: Tree) -> tuple[T | None, list[Fault]]:
    """`tree` as `kind`, or else its faults. Text in our block may spell a number, as variables of a shell do."""
    from pydantic import ValidationError

    try:
        return adapter(kind).validate_json(json.dumps(tree, default=repr), strict=True), []
    except ValidationError as error:
        spelled = _spelled_out(tree, error)
        return validate(kind, spelled) if spelled else (None, list(_explain(kind, tree, error)))


@cache
def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Made once and only when a config is read: importing pydantic takes longer than `aopsd --help` may."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def expected(schema: Tree) -> str:
    """What a value may be, in words, by its JSON schema.

    >>> expected({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
    'null or a whole number of at least 1'
    """
    if "anyOf" in schema:
        options = list(schema["anyOf"])
        if any("enum" in each for each in options) and {"type": "string"} in options:  # names of ours, or a class
            options.remove({"type": "string"})
            return f"{expected({'anyOf': options})}, or FILE.py:CLASS"
        return " or ".join(map(expected, reversed(options)))
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema["type"] == "array":
        return f"{len(schema['prefixItems'])} numbers{_range(schema['prefixItems'][0])}"
    if number := {"integer": "a whole number", "number": "a finite number"}.get(schema["type"]):
        return f"{number}{_range(schema)}"
    return {"boolean": "true or false", "null": "null", "string": "a name or a path"}[schema["type"]]


def _range(schema: Tree) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if below == SINGLE_PRECISION:
        below = None
    if low is not None and high is not None:
        return f" of exactly {low:g}" if low == high else f" from {low:g} to {high:g}"
    if above is not None and below is not None:
        return f" between {above:g} and {below:g}"
    if low is not None:
        return f" of at least {low:g}" if below is None else f" from {low:g} to below {below:g}"
    return "" if above is None else f" above {above:g}" + ("" if high is None else f" and at most {high:g}")


def property_of(schema: Tree, keys: Sequence[str | int]) -> tuple[list[str], Tree]:
    """The part of a JSON schema at `keys`, and how many of them it took: the rest are places within a value."""
    taken: list[str] = []
    here = schema
    for key in keys:
        inner = here.get("properties", {}).get(key)
        if inner is None:
            break
        taken.append(str(key))
        reference = next((each["$ref"] for each in (inner, *inner.get("anyOf", ())) if "$ref" in each), None)
        here = schema["$defs"][reference.rpartition("/")[2]] if reference else inner
    return taken, here


def _explain(kind: type, tree: Tree, error: ValidationError) -> Iterator[Fault]:
    schema, seen = adapter(kind).json_schema(), set()
    for each in error.errors(include_url=False):
        taken, here = property_of(schema, each["loc"])
        key = ".".join(taken)
        if each["type"] == "unexpected_keyword_argument":
            siblings, unknown = list(here["properties"]), str(each["loc"][-1])
            own = every_key() if key == "aopsd" else [f"{key}.{name}" for name in siblings]
            hint = likely(unknown, (own, MOST), (every_key(), 1))
            yield f"{key}.{unknown}", f"unknown key `{key}.{unknown}`.{hint} Keys of `{key}`: {', '.join(siblings)}."
        elif key not in seen:
            seen.add(key)
            value = select(tree, key)
            if "properties" in here:
                names = list(here["properties"])
                hint = _meant(key, names, value)
                yield key, f"`{key}` must be a block of keys: {', '.join(names)}; got {value!r}.{hint}"
            else:
                why = f" {first_sentence(here)}" if isinstance(value, int | float) else ""  # of the range of a number
                yield key, f"`{key}` must be {expected(here)}; got {value!r}.{_nearly(key, value)}{why}".rstrip()


def _meant(block: str, names: Sequence[str], value: object) -> str:
    """A line to paste for a value that stands where a block must: the key that takes it, or nearly, or any key."""
    inside = [f"{block}.{name}" for name in names]
    for key in inside:
        if near := get_close_matches(str(value), CHOICES.get(key.removeprefix("aopsd."), ()), n=1, cutoff=0.8):
            return f" Set {key}={near[0]}."
    if value is None and block == "aopsd.evaluation":
        return f" To evaluate nothing: {block}.data_path=null."
    if f"{block}.data_path" in inside and isinstance(value, str):
        return f" Set {block}.data_path={value}."
    return f" Set one of them, such as {inside[0]}=VALUE."


def _nearly(key: str, value: object) -> str:
    """A hint for one of a few words: the one meant, or a line to paste for a block around it (`{name: uniform}`)."""
    choices = CHOICES.get(key.removeprefix("aopsd."), ())
    if isinstance(value, str):
        return nearest(value, choices)
    inside = next(iter(value.values()), None) if isinstance(value, dict) and len(value) == 1 else None
    return f" Set {key}={inside}." if inside in choices else ""


def first_sentence(schema: Tree) -> str:
    """Of what the reference says of a key; empty where that is only where the default is from."""
    first = schema.get("description", "").replace("\n", " ").split(". ")[0].rstrip(".")
    return "" if first in ("", "Paper", "As above") else f"{first}."


def _spelled_out(tree: Tree, error: ValidationError) -> Tree | None:
    """`tree` with text of our block read as the number or truth value that it spells; None where none does."""
    changed = deepcopy(tree)
    for each in error.errors(include_url=False):
        *blocks, leaf = map(str, each["loc"])
        if each["type"] in _OF_TEXT and blocks[:1] == ["aopsd"] and isinstance(each["input"], str):
            with suppress(ValueError):
                select(changed, ".".join(blocks))[leaf] = json.loads(each["input"])
    return None if changed == tree else changed


def _without(tree: Tree, keys: Sequence[str]) -> Tree:
    changed = deepcopy(tree)
    for key in keys:
        block, _, leaf = key.rpartition(".")
        (select(changed, block) or {}).pop(leaf, None)
    return changed
