"""config.md and config.schema.json, made from the schema: `python docs/make_config.py [FOLDER]`."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_aopsd.config.checks import adapter, expected, property_of
from nemo_aopsd.config.nemo_rl_keys import NEMO_RL_BLOCKS, RunKeys
from nemo_aopsd.config.schema import READ_BY

Tree = dict[str, Any]
_HEAD = """\
# Config reference

Made from `nemo_aopsd/config/schema.py` and `nemo_rl_keys.py` by `python docs/make_config.py`; a test keeps it fresh.
The `aopsd:` block is strict. NeMo RL's blocks are open: listed are the keys that we read, and a key without a
default must be set. "Paper" means that the paper states the value; every other default is a choice of ours.
[choices.md](choices.md) has the decisions without a key.

An editor with the YAML language server completes and checks a config that names the schema, by its path from the
config, in its first line:

```yaml
# yaml-language-server: $schema=../../docs/config.schema.json
```
"""
_INTERPOLATION = {"type": "string", "pattern": r"\$\{"}
_VALUE = {"$ref": "#/$defs/Interpolation"}


def markdown() -> str:
    schema = adapter(RunKeys).json_schema()
    order = ["aopsd", *(name for name in schema["properties"] if name != "aopsd")]
    return "\n".join([_HEAD, *(line for name in order for line in _tables(schema, [name]))]).rstrip() + "\n"


def editor_schema() -> Tree:
    """For files that others inherit from: no key is required, and `${...}` may stand for any value."""
    made = adapter(RunKeys).json_schema()
    for block in (made, *made["$defs"].values()):
        block.pop("required", None)
        block["properties"] = {key: _lenient(each) for key, each in block["properties"].items()}
    made["$defs"] |= {"Interpolation": _INTERPOLATION} | _shared(list(made["$defs"].values()))
    names = {"type": ["string", "array"], "description": "Configs that this one changes, relative to it."}
    others = {name: {"type": ["object", "array", "null"]} for name in NEMO_RL_BLOCKS if name not in made["properties"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "additionalProperties": False,
        "properties": {"defaults": names, **made["properties"], **others},
    }


def _lenient(schema: Tree) -> Tree:
    about = {key: schema[key] for key in ("default", "description") if key in schema}
    about["description"] = about.get("description", "").replace("\n", " ")
    inner = {key: each for key, each in schema.items() if key not in (*about, "title")}
    is_open = "$ref" in inner or (inner.get("type") == "string" and "enum" not in inner)
    return {**about, **(inner if is_open else {"anyOf": [*inner.get("anyOf", [inner]), _VALUE]})}


def _shared(blocks: list[Tree]) -> Tree:
    """Values that several keys take, as definitions by the words for them; the keys refer to these from now on."""
    keys = [each for block in blocks for each in block["properties"].values() if "anyOf" in each]
    counts = Counter(json.dumps(each["anyOf"]) for each in keys)
    shared: Tree = {}
    for each in keys:
        if counts[json.dumps(each["anyOf"])] > 1:
            values = each.pop("anyOf")
            name = re.sub(r"[^a-z0-9.]+", "-", expected({"anyOf": values[:-1]}))
            assert shared.setdefault(name, {"anyOf": values}) == {"anyOf": values}, name
            each["$ref"] = f"#/$defs/{name}"
    return shared


def _tables(schema: Tree, path: list[str]) -> Iterator[str]:
    """A block's own keys, then the blocks in it."""
    _, block = property_of(schema, path)
    found = {key: property_of(schema, [*path, key])[1] for key in block["properties"]}
    inner = [key for key, each in found.items() if "properties" in each]
    if len(inner) < len(found):
        yield f"## `{'.'.join(path)}`\n\n{block['description']}\n"
        yield "| key | default | may be | what it does, and why this default |\n|---|---|---|---|"
    for key, each in found.items():
        if key not in inner:
            default = f"`{json.dumps(each['default']).strip(chr(34))}`" if "default" in each else ""
            yield f"| `{key}` | {default} | {expected(each)} | {_text(path, key, each)} |"
    if len(inner) < len(found):
        yield ""
    for key in inner:
        yield from _tables(schema, [*path, key])


def _text(path: list[str], key: str, schema: Tree) -> str:
    text = schema.get("description", "").replace("\n", " ")
    readers = READ_BY.get(key, ()) if path == ["aopsd", "objective"] else ()
    return f"{text} Read by {', '.join(f'`{name}`' for name in readers)}." if readers else text


def main(folder: Path) -> None:
    (folder / "config.md").write_text(markdown(), encoding="utf-8")
    text = json.dumps(editor_schema(), indent=1, ensure_ascii=False) + "\n"
    (folder / "config.schema.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
