"""Asks one Python what it has: run as a script by each worker's interpreter, so only the standard library at the top.

    python -P probe.py [MODULE.CLASS]

prints one line of JSON: the versions of the packages that matter and, with a class, why it cannot be imported (null if
it can). `-P` keeps this folder off the path: what is found is what a worker would find.
"""

from __future__ import annotations

import importlib
import json
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

# Distribution -> module.
PACKAGES = {
    "nemo-rl": "nemo_rl",
    "ray": "ray",
    "torch": "torch",
    "transformers": "transformers",
    "vllm": "vllm",
    "megatron-core": "megatron.core",
    "megatron-bridge": "megatron.bridge",
    "transformer-engine": "transformer_engine",
    "apex": "apex",
    "nvidia-nccl-cu13": "nvidia.nccl",
    "nvidia-nccl-cu12": "nvidia.nccl",
}


def versions() -> dict[str, str]:
    """Versions of the packages that are here; `?` where a package does not say."""
    found = {"python": platform.python_version()}
    for package, module in PACKAGES.items():
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            if not package.startswith("nvidia-") and (folder := _folder(module)):
                found[package] = _from_source(folder) or "?"
    if cuda := _cuda_of_torch():
        found["torch-cuda"] = cuda
    return found


def _folder(module: str) -> Path | None:
    """Where a package without metadata (a source tree on PYTHONPATH) lies."""
    parent, _, _ = module.partition(".")
    if find_spec(parent) is None:
        return None
    try:
        spec = find_spec(module)
    except ImportError:
        return None
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _from_source(folder: Path) -> str | None:
    """NVIDIA's `package_info.py`: MAJOR, MINOR and PATCH."""
    file = folder / "package_info.py"
    if not file.is_file():
        return None
    numbers = dict(re.findall(r"^(MAJOR|MINOR|PATCH)\s*=\s*(\d+)", file.read_text(encoding="utf-8"), re.MULTILINE))
    return ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH")) if len(numbers) == 3 else None


def _cuda_of_torch() -> str | None:
    """The CUDA version that torch was built for, without loading torch; None for a CPU build."""
    folder = _folder("torch")
    if folder is None or not (folder / "version.py").is_file():
        return None
    match = re.search(r"^cuda\b.*=\s*['\"]([\d.]+)", (folder / "version.py").read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else None


def import_error(name: str) -> str | None:
    """Why `module.Class` cannot be imported."""
    module, _, attribute = name.rpartition(".")
    try:
        getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever an import may raise is the finding
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


if __name__ == "__main__":
    answer: dict[str, object] = {"versions": versions()}
    if len(sys.argv) > 1:
        answer["import_error"] = import_error(sys.argv[1])
    print("\n" + json.dumps(answer))  # a line of its own, after whatever the imports printed
