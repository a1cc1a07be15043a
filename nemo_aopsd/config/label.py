"""The method of a run: the config of `aopsd methods` with equal settings, or the nearest one and the differences.

Two settings are compared only where the run reads them: a probe's threshold tells nothing of a run without probes.
Not compared at all are those that the base config brings (`NOT_OF_THE_METHOD`), as model, data and optimizer are not.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from nemo_aopsd.config.keys import flatten, typed
from nemo_aopsd.config.schema import CHOICES, AOPSDConfig
from nemo_aopsd.config.shipped import Method, list_methods
from nemo_aopsd.config.unread import idle_keys

# Where, how long and on what a run trains; a block stands for all in it. `label_run` tells `max_num_steps` 0 apart.
NOT_OF_THE_METHOD = (
    *("engine", "seed", "prompts", "thinking", "evaluation", "context.on_overlong"),
    *("num_prompts_per_step", "max_num_epochs", "max_num_steps", "max_response_tokens", "max_train_seconds"),
    *("judge.max_new_tokens", "judge.max_attempt_tokens", "judge.num_retries", "curriculum.num_initial_attempts"),
    *("judge.threshold", "probes.keep_cache", "probes.runner", "scoring", "keep_optimizer_on_gpu"),
)
# Ties go to these well-known methods, then to the order of `aopsd methods`.
_FAMILIAR = ("aopsd", "opsd", "pg")

Settings = dict[str, Any]  # dotted keys below `aopsd`


@dataclass(frozen=True, slots=True)
class Label:
    """`method` is the run's but for `differing`: the run's own values, by dotted key below `aopsd`."""

    method: Method
    differing: Settings

    def __str__(self) -> str:
        """The method's name, and after a + each setting that differs, as one would type it."""
        settings = ", ".join(f"{key}={typed(value)}" for key, value in self.differing.items())
        return f"{self.method.name} + {settings}" if settings else self.method.name


def label_run(aopsd: AOPSDConfig) -> Label:
    """What to call a run with this `aopsd:` block."""
    return min(_labels(aopsd), key=_distance)


def family_label(aopsd: AOPSDConfig) -> str:
    """As `label_run`, but after a method, not an ablation: `aopsd + probes.threshold=1 (ablation delta_1)`."""
    nearest = label_run(aopsd)
    family = min((label for label in _labels(aopsd) if label.method.kind == "methods"), key=_distance)
    is_ablation = nearest.method.kind == "ablations" and not nearest.differing
    return f"{family} (ablation {nearest})" if is_ablation else str(family)


def _labels(aopsd: AOPSDConfig) -> list[Label]:
    """The run as each method that there is, with what it has otherwise."""
    run = _settings(aopsd)
    read = sorted(settings_read(aopsd))
    return [
        Label(method, {key: run[key] for key in read if run[key] != settings[key]})
        for method, settings in _known_methods()
        if (settings["max_num_steps"] == 0) == (aopsd.max_num_steps == 0)
    ]


def describe_run(aopsd: AOPSDConfig) -> str:
    """The method's own words where the run is one, else its label."""
    label = label_run(aopsd)
    return str(label) if label.differing else label.method.title


def settings_read(aopsd: AOPSDConfig) -> set[str]:
    """Dotted keys below `aopsd` that make the run's method: all but the base config's, and those that do nothing."""
    if aopsd.max_num_steps == 0:  # the model as it is
        return set()
    others = {*NOT_OF_THE_METHOD, *idle_keys(aopsd)}
    return {key for key in _settings(aopsd) if not {key, key.split(".")[0]} & others}


@cache
def _known_methods() -> Sequence[tuple[Method, Settings]]:
    """Each method with its whole `aopsd:` block, over the defaults alone."""
    defaults = _settings(AOPSDConfig())
    return [
        (method, defaults | {key.removeprefix("aopsd."): value for key, value in method.settings.items()})
        for method in list_methods()
    ]


def _settings(aopsd: AOPSDConfig) -> Settings:
    return flatten(asdict(aopsd))


def _distance(label: Label) -> tuple[int, int, int]:
    """A different choice weighs more than any different numbers: gap_only with a threshold of 1 is still gap_only."""
    name = label.method.name
    familiarity = _FAMILIAR.index(name) if name in _FAMILIAR else len(_FAMILIAR)
    return sum(key in CHOICES for key in label.differing), len(label.differing), familiarity
