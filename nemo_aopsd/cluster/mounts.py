"""Paths of a config as a job's container sees them, found on the machine that submits it."""

import json
from collections.abc import Iterator
from pathlib import Path

from nemo_aopsd.config.extension import WANTED
from nemo_aopsd.config.keys import select
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.config_json import is_hub_name
from nemo_aopsd.prompts import is_family

_MODELS = ("policy.model_name", "policy.tokenizer.name")
_INPUTS = ("data.train.data_path", "aopsd.evaluation.data_path", "aopsd.prompts")
_OUTPUTS = ("logger.log_dir", "checkpointing.checkpoint_dir")


def paths_here(config: Config, mounts: str) -> list[str]:
    """Overrides that name what `config` reads by its place on this machine; `mounts` are HERE:THERE, commas between.

    Raises UserError for each path that no mount brings into the container. A model of the hub is no path.
    """
    pairs = sorted(_pairs(mounts), key=lambda pair: len(pair[1].parts), reverse=True)
    faults, overrides = [], []
    for key, path, behind in _paths(config):
        there = Path.cwd() / path
        found = next(((here, place) for here, place in pairs if there.is_relative_to(place)), None)
        if found is None:
            listed = ", ".join(str(place) for _, place in pairs) or "none"
            remedy = f"Add {there}:{there}, or the folder that has it."
            faults.append(f"{key}={path}: in no mount of the container ({listed}). {remedy}")
        elif key not in _OUTPUTS:
            here = found[0] / there.relative_to(found[1])
            overrides.append(f"{key}={json.dumps(f'{here}{behind}', ensure_ascii=False)}")
    if faults:
        raise UserError("\n".join(faults))
    return overrides


def _pairs(mounts: str) -> Iterator[tuple[Path, Path]]:
    for mount in filter(None, mounts.split(",")):
        here, _, there = mount.partition(":")
        there = there.partition(":")[0]  # behind it are flags, such as ro
        if not (here.startswith("/") and there.startswith("/")):
            raise UserError(f"--mounts: {mount!r}; expected /HERE:/THERE, with commas between.")
        yield Path(here), Path(there)


def _paths(config: Config) -> Iterator[tuple[str, str, str]]:
    """Key, path, and what its value has behind the path: the class in a file of the user's own."""
    for key in (*_MODELS, *_INPUTS, *_OUTPUTS):
        value = select(config.raw, key)
        is_model_of_hub = key in _MODELS and is_hub_name(str(value))
        if value and not is_model_of_hub and not (key == "aopsd.prompts" and is_family(value)):
            yield key, value, ""
    for key in (f"aopsd.{name}" for name in WANTED):
        file, colon, name = str(select(config.raw, key)).partition(":")
        if colon and file.endswith(".py"):
            yield key, file, f"{colon}{name}"
