"""Reports what one Python has: each worker's interpreter runs it as a script, so it imports only the standard library.

    python -P probe.py MODULE.CLASS PACKAGE...

prints one line of JSON: the packages' versions, and why the class cannot be imported (null if it can). `-P` keeps this
folder off the path: what is found is what a worker would find.
"""

import importlib.util
import json
import platform
import runpy
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Python's version, and those of `packages` that are installed here, or for NeMo RL on PYTHONPATH."""
    found = {"python": platform.python_version()}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = nemo_rl_version() if package == "nemo-rl" else version(package)
    return found


def nemo_rl_version() -> str:
    """Of NeMo RL, installed or a checkout on PYTHONPATH, which is not imported: that would set up its libraries."""
    with suppress(PackageNotFoundError):
        return version("nemo-rl")
    spec = importlib.util.find_spec("nemo_rl")
    for folder in (spec and spec.submodule_search_locations) or ():
        with suppress(OSError):
            return runpy.run_path(f"{folder}/package_info.py")["__version__"]
    raise PackageNotFoundError("nemo-rl")


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
