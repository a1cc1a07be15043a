"""How strongly the teacher is followed at a triggered token (sec:selective), and controls that test what matters."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from statistics import mean, median
from typing import TYPE_CHECKING, ClassVar, Protocol

from nemo_aopsd.config.extension import is_own, made
from nemo_aopsd.config.schema import AOPSDConfig, ProbeConfig
from nemo_aopsd.errors import UserError
from nemo_aopsd.types import TrainRow

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_aopsd.method.probes import Probe
    from nemo_aopsd.method.rollout import Scored

SPAN = 32  # steps whose medians make a width of `probes.betas=auto`
LEAST_BETA = 0.1  # nats; where most text is certain, the median is 0, and no weight would be left


class OwnWeighting(Protocol):
    """A class that `aopsd.weighting` may name."""

    continues: ClassVar[bool]  # whether the teacher continues at triggered tokens; without it, `probes` are empty

    def __init__(self, aopsd: AOPSDConfig): ...

    def weigh(self, gaps: list[Tensor], probes: list[list[Probe]]) -> list[Tensor]:
        """w_t, a finite tensor [T] for each rollout that the loss counts, from its gaps [T] in nats and its probes."""
        ...


def over_threshold(gap: Tensor, config: ProbeConfig) -> Tensor:
    """Whether |gap| >= delta, [T] bool: tokens that trigger, unless `max_per_rollout` larger ones do."""
    return gap.abs() >= config.threshold


def triggered(gap: Tensor, config: ProbeConfig) -> list[int]:
    """H(y): positions of `gap` [T] with |gap| >= delta, ascending; at most the `max_per_rollout` largest."""
    positions = over_threshold(gap, config).nonzero().flatten().tolist()
    if config.max_per_rollout is None or len(positions) <= config.max_per_rollout:
        return positions
    return sorted(sorted(positions, key=lambda t: -abs(gap[t].item()))[: config.max_per_rollout])


def band_pass(nll: float, beta: float) -> float:
    """w = (L / beta) exp(1 - L / beta), peak 1 at L = beta (eq:continuation-weight).

    >>> band_pass(2.5, beta=2.5), band_pass(0.0, beta=1.0)
    (1.0, 0.0)
    """
    if not (nll >= 0 and beta > 0):
        raise ValueError(f"expected nll >= 0 and beta > 0, got {nll} and {beta}")
    if math.isinf(nll):
        return 0.0
    return nll / beta * math.exp(1 - nll / beta)


@dataclass(frozen=True, slots=True)
class Betas:
    """Width of the band-pass by the sign of the gap; None where `auto` has seen no L of that sign."""

    positive: float | None
    negative: float | None

    def of(self, gap: float) -> float | None:
        return self.positive if gap > 0 else self.negative


@dataclass(frozen=True, slots=True)
class Surprise:
    """How surprising continuations have been: by the sign of the gap, the median L of each of the last steps.

    Only of probes in answers that the loss counts.
    """

    positive: tuple[float, ...] = ()
    negative: tuple[float, ...] = ()

    def after(self, found: Iterable[tuple[float, float | None]]) -> Surprise:
        """With a step more: the gap and L of each of its probes. A step without an L of a sign says nothing of it."""
        known = [(gap, nll) for gap, nll in found if nll is not None]
        return Surprise(
            _appended(self.positive, [nll for gap, nll in known if gap > 0]),
            _appended(self.negative, [nll for gap, nll in known if not gap > 0]),
        )

    def betas(self, config: ProbeConfig) -> Betas:
        """The widths that a step has whose probes are the newest here."""
        if config.betas == "fixed":
            return Betas(config.beta_positive, config.beta_negative)
        usual = [max(median(values), LEAST_BETA) if values else None for values in (self.positive, self.negative)]
        return Betas(*usual)


UNSURPRISED = Surprise()  # before the first step


def _appended(medians: tuple[float, ...], nlls: list[float]) -> tuple[float, ...]:
    return (*medians, median(nlls))[-SPAN:] if nlls else medians


def continuation_weight(gap: float, nll: float | None, betas: Betas) -> float:
    """The weight of one probed token; 1 for an empty suffix (`nll` None), and where there is no width.

    There is none for a token of a masked answer while `auto` has seen no L of its sign in an answer that counts.
    """
    beta = betas.of(gap)
    return 1.0 if nll is None or beta is None else band_pass(nll, beta)


def weighed(scored: list[Scored], aopsd: AOPSDConfig, seed: int) -> list[Scored]:
    """The rows of a step and their probes with the weights that `aopsd.weighting` says: all of them come from here.

    Needs the gap of each row and, where the teacher continues, its probes with continuation weights. What makes which
    weighting is in docs/architecture.md. Raises UserError if those of the user's class are unfit.
    """
    if aopsd.continues:
        in_loss = [row.draft.in_loss(aopsd) for row in scored]
        probes_B = reweigh([row.probes for row in scored], in_loss, aopsd.weighting, seed, aopsd.probes)
        elsewhere = aopsd.probes.untriggered_weight
        scored = [
            replace(row, probes=probes, weights=probe_weights(probes, len(row.weights), elsewhere=elsewhere))
            for row, probes in zip(scored, probes_B, strict=True)
        ]
    else:
        gaps = [gap for row in scored if (gap := row.gap) is not None]
        weights = [gap_weights(gap, aopsd.weighting, aopsd.probes) for gap in gaps]
        scored = [replace(row, weights=values) for row, values in zip(scored, weights, strict=True)]
    return _by_class(scored, aopsd) if is_own(aopsd.weighting) else scored


def reweigh(
    probes_B: list[list[Probe]], in_loss: Sequence[bool], weighting: str, seed: int, config: ProbeConfig
) -> list[list[Probe]]:
    """The probes of a step with the weights that `weighting` makes of those in rollouts that the loss counts.

    The others keep their continuation weights, which are recorded and have no effect.
    """
    found = [(probe.weight, probe.gap) for probes in compress(probes_B, in_loss) for probe in probes]
    weights = iter(step_weights([weight for weight, _ in found], [gap for _, gap in found], weighting, seed, config))
    return [
        [replace(probe, weight=next(weights)) for probe in probes] if counts else probes
        for probes, counts in zip(probes_B, in_loss, strict=True)
    ]


def probe_weights(probes: Sequence[Probe], num_tokens: int, *, elsewhere: float = 1.0) -> Tensor:
    """w_t, [T]: the probes' weights, and `elsewhere` at every other token."""
    import torch

    weights = torch.full((num_tokens,), elsewhere)
    for probe in probes:
        weights[probe.position] = probe.weight
    return weights


def step_weights(
    weights: Sequence[float], gaps: Sequence[float], weighting: str, seed: int, config: ProbeConfig
) -> list[float]:
    """What `weighting` makes of the continuation weights of a step's triggered tokens that the loss counts.

    `normalised` divides by the mean; no weight exceeds `max_weight`, and weights that are all 0 stay so. `shuffled`
    permutes at random (seeded), `constant` gives all the mean: both keep the sum of w, not that of w |gap|.
    `gap_matched` takes the weights of `gap_only` times one factor that keeps the sum of w |gap|, the size of all
    advantages (C aside). docs/methods.md says what each tests.
    """
    if not weights:
        return []
    if weighting == "normalised":
        scale = mean(weights) or 1.0
        return [min(weight / scale, config.max_weight) for weight in weights]
    if weighting == "gap_matched":
        by_gap = [_by_gap(gap, config) for gap in gaps]
        return [weight * _advantage(weights, gaps) / (_advantage(by_gap, gaps) or 1.0) for weight in by_gap]
    if weighting == "shuffled":
        return random.Random(f"{seed}/shuffled").sample(weights, len(weights))
    if weighting == "constant":
        return [mean(weights)] * len(weights)
    return list(weights)


def _advantage(weights: Sequence[float], gaps: Sequence[float]) -> float:
    """Sum of |advantage|, before the clip at C."""
    return sum(weight * abs(gap) for weight, gap in zip(weights, gaps, strict=True))


def _by_gap(gap: float, config: ProbeConfig) -> float:
    return band_pass(abs(gap), config.beta_positive if gap > 0 else config.beta_negative)


def gap_weights(gap: Tensor, weighting: str, config: ProbeConfig) -> Tensor:
    """Weights [T] that need no continuation, from the gap [T]: at triggered tokens by `weighting`, 1 at all others.

    `gap_only` is the band-pass of |gap| in the place of the surprise, with `untriggered_weight` at all others;
    `zero_triggered` is 0, `uniform` is 1, and so is `constant_negative`, which changes the gap itself.
    """
    import torch

    weights = torch.ones(len(gap))
    if weighting == "zero_triggered":
        weights[triggered(gap, config)] = 0.0
    if weighting == "gap_only":
        weights[:] = config.untriggered_weight
        for position in triggered(gap, config):
            weights[position] = _by_gap(gap[position].item(), config)
    return weights


def constant_negative(rows: list[TrainRow]) -> list[TrainRow]:
    """Rows of a teacher that finds every token m nats less likely than the student did at collection.

    m is the mean |gap| over the step's tokens that the loss counts: as large an advantage, without a teacher.
    """
    import torch

    sizes = torch.cat([torch.empty(0), *(row.gap[row.mask].abs() for row in rows)])
    level = sizes.mean() if len(sizes) else 0.0
    return [replace(row, teacher_logprobs=old - level) for row in rows if (old := row.old_logprobs) is not None]


def checked_weights(name: str, part: OwnWeighting, gaps: list[Tensor], probes: list[list[Probe]]) -> list[Tensor]:
    """What an own class of this name weighs. Raises UserError unless it is a finite tensor for each row of gaps."""
    import torch

    weights = part.weigh(gaps, probes)
    wanted = f"aopsd.weighting={name}: `weigh` must give a tensor of finite weights for each rollout"
    if not isinstance(weights, Sequence) or len(weights) != len(gaps):
        got = len(weights) if isinstance(weights, Sequence) else type(weights).__name__
        raise UserError(f"{wanted}; got {got} for {len(gaps)} rollouts.")
    for number, (values, gap) in enumerate(zip(weights, gaps, strict=True)):
        if not isinstance(values, torch.Tensor) or values.shape != gap.shape:
            got = f"shape {list(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
            raise UserError(f"{wanted}, as long as its gaps; got {got} for the {len(gap)} gaps of rollout {number}.")
        if not values.isfinite().all():
            raise UserError(f"{wanted}; a weight of rollout {number} is not finite.")
    return weights


def _by_class(scored: list[Scored], aopsd: AOPSDConfig) -> list[Scored]:
    """The rows with the weights of the user's class, at probed tokens too. Raises UserError if they are unfit.

    The class sees rows that the loss counts; the others stay as they are.
    """
    rows = [row for row in scored if row.draft.in_loss(aopsd)]
    if not rows:
        return scored
    gaps = [gap for row in rows if (gap := row.gap) is not None]
    part = made("weighting", aopsd.weighting, aopsd)
    found = iter(checked_weights(aopsd.weighting, part, gaps, [row.probes for row in rows]))
    return [_with_weights(row, next(found)) if row.draft.in_loss(aopsd) else row for row in scored]


def _with_weights(row: Scored, weights: Tensor) -> Scored:
    probes = [replace(probe, weight=weights[probe.position].item()) for probe in row.probes]
    return replace(row, weights=weights, probes=probes)
