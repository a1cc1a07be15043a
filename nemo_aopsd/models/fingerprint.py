"""Which weights a model folder or file holds, told without reading all of them."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

_MARGIN = 1 << 20  # bytes read from either end of a file
_PARTS = ("config.json", "*.safetensors", "*.bin", "*.gguf")


def fingerprint_model(name: str) -> str | None:
    """Of the weights and config.json of `policy.model_name`, wherever they lie; None if it is nothing on this disk."""
    path = Path(name)
    if path.is_file():
        return fingerprint_ends([path])
    files = {file for part in _PARTS for file in path.glob(part) if file.is_file()}
    return fingerprint_ends(sorted(files)) if files else None


def fingerprint_ends(files: Iterable[Path]) -> str:
    """SHA-256 over names, sizes and both ends of the files: training moves every tensor, so the ends tell."""
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_MARGIN))
            stream.seek(max(0, size - _MARGIN))
            digest.update(stream.read())
    return digest.hexdigest()
