"""Files of models in the local Hugging Face cache; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path


def find_cached(name: str, file: str) -> Path | None:
    """Where the cache has `file` of the model `name`; None if it has not, or the hub could have no such name."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, file)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
