"""Reports what one Python has: each worker's interpreter runs it as a script, so it imports only the standard library.

    python -P probe.py MODULE.CLASS PACKAGE...

prints one line of JSON: the packages' versions, and why the class cannot be imported (null if it can). `-P` keeps this
folder off the path: what is found is what a worker would find.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Python's version, and those of `packages` that are installed here."""
    found = {"python": platform.python_version()}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def import_error(name: str) -> str | None:
    """Why `module.Class` cannot be imported."""
    module, _, attribute = name.rpartition(".")
    try:
        getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever an import may raise is the finding
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


if __name__ == "__main__":
    name, *packages = sys.argv[1:]
    answer = {"import_error": import_error(name), "versions": versions(packages)}
    print("\n" + json.dumps(answer))  # on a line of its own, below what the import printed
