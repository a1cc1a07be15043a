"""The words of the page, for a run that has what they stand for; and what the user's own classes say of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from nemo_aopsd.config.extension import WANTED, is_own, own
from nemo_aopsd.config.schema import AOPSDConfig

_BAND_PASS = "w(L) = (L/β) exp(1 − L/β), from 0 to 1, multiplies the gap of a probed token"
_BY_GAP = "w = (g/β) exp(1 − g/β) of g = |gap| multiplies the gap of a token whose |gap| is at least δ"
_ELSEWHERE = ". Other tokens have the weight of probes.untriggered_weight, 1 unless it is set."
_WEIGHTS = {
    "continuation": f"{_BAND_PASS}{_ELSEWHERE}",
    "normalised": f"{_BAND_PASS}, divided by the step's mean, at most probes.max_weight{_ELSEWHERE}",
    "shuffled": f"{_BAND_PASS}, after the step's weights have changed places at random{_ELSEWHERE}",
    "constant": f"The step's mean of w(L): {_BAND_PASS}{_ELSEWHERE}",
    "gap_matched": f"{_BY_GAP}, times one factor, so that the amount is that of w(L) = (L/β) exp(1 − L/β){_ELSEWHERE}",
    "gap_only": f"{_BY_GAP}{_ELSEWHERE}",
    "zero_triggered": "0 at a token whose |gap| is at least δ (probes.threshold), 1 at the others.",
}


def own_parts(aopsd: AOPSDConfig) -> dict[str, str]:
    """Key below `aopsd`, and the user's class there with the first line of its docstring."""
    named = {key: value for key in WANTED if is_own(value := attrgetter(key)(aopsd))}
    about = {key: (own(key, name).__doc__ or "").strip().partition("\n")[0] for key, name in named.items()}
    return {key: f"{name}: {about[key]}" if about[key] else name for key, name in named.items()}


def terms(aopsd: AOPSDConfig) -> Iterator[tuple[str, str]]:
    """What the page says of this run, by word."""
    yield "rollout", "One response that the student sampled, with everything that was computed about it."
    if aopsd.objective.reads_teacher:
        yield from _of_the_teacher()
    if aopsd.needs_progress or aopsd.shown_context.startswith("dag"):
        yield from _of_the_graph(aopsd)
    if aopsd.objective.reads_teacher and aopsd.continues:
        yield (
            "probe, triggered",
            ("A look at what the teacher would write next, at a token whose |gap| is at least δ (probes.threshold)."),
        )
        yield "anchor", "Where the probe starts: the student's token if the gap is positive, else the teacher's choice."
        yield "continuation, or suffix", "What the teacher writes greedily after the anchor, at most k − 1 tokens."
        yield (
            "surprise L",
            (
                "Mean negative log-prob of the continuation under the student, in nats a token. Near 0: no news. "
                "Large: foreign, often a shortcut from the private context."
            ),
        )
    if is_own(aopsd.weighting):
        yield "weight", f"w multiplies the gap of a token. By {own_parts(aopsd)['weighting']}"
    elif aopsd.weighting in _WEIGHTS:
        yield "weight", _WEIGHTS[aopsd.weighting]
    yield "pass@k", "Chance that at least one of k samples is correct, from n samples without bias."
    yield (
        "leak meter",
        "Rate of phrases in question-only responses that refer to a context that the student never saw.",
    )


def _of_the_teacher() -> Iterator[tuple[str, str]]:
    yield (
        "student, teacher",
        (
            "One model in two roles. The student reads the bare question; the teacher reads the question and a private "
            "context. Only the student learns."
        ),
    )
    yield (
        "gap",
        ("Teacher log-prob less student log-prob of a sampled token, in nats. Positive: the teacher likes it more."),
    )
    yield "gap mass", "Sum of |gap| over tokens."


def _of_the_graph(aopsd: AOPSDConfig) -> Iterator[tuple[str, str]]:
    yield "reasoning DAG", "Checkpoints of a solution; an edge runs from a direct prerequisite to what depends on it."
    if aopsd.shown_context.startswith("dag"):
        yield "disclosed", "Share of a graph's checkpoints that the teacher was shown."
    if aopsd.needs_progress:
        yield "reached", "Checkpoints that the judge found in the attempt, with all their prerequisites."
        yield "progress", "Share of a graph's checkpoints that an attempt reached."
    if aopsd.shown_context == "dag_frontier":
        yield (
            "frontier, or next",
            ("Checkpoints not reached whose prerequisites all are. The teacher is shown these and the reached ones."),
        )
    if aopsd.curriculum.needs_progress:
        yield "competence", "A problem's running mean of progress; the curriculum orders the problems by it."
