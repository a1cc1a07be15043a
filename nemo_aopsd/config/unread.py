"""Settings to be told of: those without effect, which a run with its other settings does not read or whose engine does
not know them, and a value that is hardly meant."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from nemo_aopsd.config.extension import is_own
from nemo_aopsd.config.keys import ALIKE, HELD_OUT, MOST, VALIDATION, Tree, flatten, likely, select, typed, where
from nemo_aopsd.config.nemo_rl_keys import BLOCKS, LOCAL_KEYS, NEMO_RL_BLOCKS
from nemo_aopsd.config.schema import READ_BY, UNIFORM, AOPSDConfig, Config
from nemo_aopsd.errors import UserError

# Of the local engine's alone: NeMo RL has its own keys for the same.
_ONLY_LOCAL = ("policy.enforce_eager", "policy.prefix_cache_gb")


def without_effect(config: Config, overrides: Sequence[str]) -> list[str]:
    """A sentence for each override that changes nothing, and one for the blocks that the engine does not read."""
    aopsd = config.aopsd
    given = dict.fromkeys(text.lstrip("+").partition("=")[0] for text in overrides)
    idle = {f"aopsd.{key}": why for key, why in idle_keys(aopsd).items()}
    if aopsd.engine == "nemo_rl":
        idle |= dict.fromkeys(_ONLY_LOCAL, "only aopsd.engine=local reads it")
    told = [f"{key} has no effect: {idle[key]}." for key in given if key in idle]
    if config.data.get("validation"):
        told.append(f"data.validation has no effect: it is read by NeMo RL's own scripts.{HELD_OUT}")
    if aopsd.engine == "local" and (unread := sorted(_unread_by_local(config.raw))):
        told.append(f"not read by aopsd.engine=local: {', '.join(unread)}. docs/config.md lists what is.")
    return told


def unusual(config: Config) -> list[str]:
    """A warning of a learning rate that is likely a misread exponent."""
    rates = {key: select(config.raw, key) for key in ("policy.optimizer.kwargs.lr", "policy.megatron_cfg.optimizer.lr")}
    usual = "Adam on all weights takes 1e-6 to 1e-4, as a rule. Check the exponent."
    return [
        f"{where(config, key)}: {key} is {rate:g}; {usual}"
        for key, rate in rates.items()
        if isinstance(rate, int | float) and rate >= 0.01
    ]


def check_slips(config: Config) -> None:
    """Raise UserError for keys that the local engine does not read, but knows a like one in their part of the config.

    An override with a plus is not asked about: whoever adds a key so means it. Nor is a run that goes on with its own.
    """
    slips = {key: hint for key in sorted(_unread_by_local(config.raw)) if (hint := _slip(key))}
    if not slips:
        return
    meant = ("override `+", f"{Path(config.logger['log_dir']) / 'config.yaml'}:")
    told = [
        f"{where(config, key)}: aopsd.engine=local does not read `{key}`.{hint} If not, leave it out, or add it "
        f"by an override: {shlex.quote(f'+{key}={typed(select(config.raw, key))}')}"
        for key, hint in slips.items()
        if not config.origins.get(key, "").startswith(meant)
    ]
    if told:
        raise UserError("\n".join(told))


def _slip(key: str) -> str:
    """The hint at what an unread key may mean: a key of its block or, if only one is like it, of a block around it."""
    block, _, name = key.rpartition(".")
    if not block or key in (*ALIKE, *BLOCKS) or name.startswith("val_"):  # of validation: nothing in training means it
        return ""
    known, top = (*LOCAL_KEYS, *BLOCKS), key.partition(".")[0]
    beside = [each for each in known if each.rpartition(".")[0] == block]
    return likely(name, (beside, MOST), ([each for each in known if each.startswith(f"{top}.")], 1))


def _unread_by_local(raw: Tree) -> set[str]:
    """The outermost dotted keys of NeMo RL's blocks that hold nothing that the local engine reads."""
    # The engine checks the keys of the optimizer, and W&B its own.
    known = (*LOCAL_KEYS, "policy.optimizer.kwargs", "logger.wandb", "logger.tensorboard")
    unread = set()
    for key in flatten({name: raw[name] for name in NEMO_RL_BLOCKS if name in raw}):
        parts = key.split(".")
        outer = [".".join(parts[: number + 1]) for number in range(len(parts))]
        if not any(each in known for each in outer) and outer[1:2] != [".".join(VALIDATION)]:
            unread.add(next((each for each in outer if not any(name.startswith(f"{each}.") for name in known)), key))
    return unread


def idle_keys(aopsd: AOPSDConfig) -> dict[str, str]:
    """Keys below `aopsd` without effect under the others, and why."""
    return dict(_idle(aopsd))


def _idle(aopsd: AOPSDConfig) -> Iterator[tuple[str, str]]:
    def each(keys: str, why: str, block: str = "") -> Iterator[tuple[str, str]]:
        return ((f"{block}{key}", why) for key in keys.split())

    objective, weighting = aopsd.objective.name, f"with aopsd.weighting={aopsd.weighting} nothing reads it"
    for key, names in READ_BY.items():
        if objective not in names and not is_own(objective):
            yield f"objective.{key}", f"only aopsd.objective.name={' or '.join(names)} reads it"
    for key, reward in (("reward_weight", "added"), ("evidence_clip", "direction")):
        if objective == "pg" and aopsd.objective.reward != reward:
            yield f"objective.{key}", f"only aopsd.objective.reward={reward} reads it"
    if aopsd.curriculum.name == "shuffle":
        yield from each("ema num_initial_attempts", "aopsd.curriculum.name is shuffle", "curriculum.")
    if not aopsd.objective.reads_teacher:
        keys = "context.kind context.on_overlong teacher.weights thinking.teacher"
        yield from each(keys, f"aopsd.objective.name={objective} has no teacher")
    if aopsd.shown_context != "dag_frontier":
        yield "context.mark_frontier", "only aopsd.context.kind=dag_frontier marks checkpoints"
    if not aopsd.needs_progress:
        keys = "kind model max_new_tokens num_retries max_attempt_tokens threshold"
        yield from each(keys, "neither context nor curriculum asks the judge", "judge.")
    elif aopsd.judge.kind == "list":
        yield "judge.threshold", "only aopsd.judge.kind=log_odds reads it"
    elif aopsd.judge.kind == "log_odds":
        yield from each("max_new_tokens num_retries", "aopsd.judge.kind=log_odds writes no verdict", "judge.")
    if aopsd.teacher.weights != "ema" or not aopsd.objective.reads_teacher:
        yield "teacher.ema_decay", "only aopsd.teacher.weights=ema reads it"
    if aopsd.evaluation.data_path is None:
        keys = "num_samples temperature top_p top_k max_new_tokens period"
        yield from each(keys, "without aopsd.evaluation.data_path nothing is evaluated", "evaluation.")
    if aopsd.weighting in UNIFORM:
        yield from each("threshold max_per_rollout", weighting, "probes.")
    if aopsd.weighting in (*UNIFORM, "zero_triggered"):
        yield from each("beta_positive beta_negative untriggered_weight", weighting, "probes.")
    elif aopsd.probes.betas == "auto":
        yield from each("beta_positive beta_negative", "aopsd.probes.betas is auto", "probes.")
    if not aopsd.continues:
        yield from each("length score_anchor betas", weighting, "probes.")
    if aopsd.weighting != "normalised" and not is_own(aopsd.weighting):
        yield "probes.max_weight", "only aopsd.weighting=normalised reads it"
