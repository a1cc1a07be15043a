"""What do the teacher's continuations say? Correction cues and references to the private context, by k (Table 1).

The paper selects non-overlapping events with |g| >= 2, keeps the student's token and lets the teacher write on. A run's
probes do that where the gap is positive; where it is negative they start with the teacher's own token (sec:selective).
Both kinds are told apart here. A phrase counts at k if it ends within the first k tokens, the anchor included.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nemo_aopsd import figures as svg
from nemo_aopsd.analysis.diagnostics.intervals import estimate, ratio
from nemo_aopsd.analysis.diagnostics.output import Result, intervals_of
from nemo_aopsd.analysis.diagnostics.patterns import KINDS, Patterns, first_end, load_patterns
from nemo_aopsd.analysis.diagnostics.steps import ALL_STEPS, Steps, read_rollouts
from nemo_aopsd.config.extension import is_own
from nemo_aopsd.config.schema import CONTINUED, Config
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.tokenizer import open_tokenizer
from nemo_aopsd.run.reader import Run, load_run
from nemo_aopsd.run.record_types import Probe
from nemo_aopsd.types import Tokens

GROUPS = {
    "gap > 0: the student's token kept, as in the paper": lambda event: event.positive,
    "gap < 0: from the teacher's own token": lambda event: not event.positive,
    "All events": lambda event: True,
}
HEADS = {"correction": "correction cues", "reference": "references to the private context"}

Decode = Callable[[Tokens], str]


@dataclass(frozen=True)
class Event:
    """One continuation. `first` has, by kind, the smallest k at which it counts, None if it never does."""

    problem: str
    positive: bool
    tokens: Tokens  # anchor and suffix
    first: dict[str, int | None]

    def has(self, kind: str, k: int) -> bool:
        at = self.first[kind]
        return at is not None and at <= k


def diagnose_continuations(
    run: Path,
    *,
    decode: Decode | None = None,
    patterns: Sequence[Path] = (),
    threshold: float | None = None,
    steps: Steps = ALL_STEPS,
) -> Result:
    """Table 1 of a run's probes. `decode`: ids to text; the run's own tokenizer if left out.

    Raises UserError if the run has no probe, or `threshold` is below the one that it probed at.
    """
    source = load_run(run)
    config = source.config
    probes = config.aopsd.probes
    if not (config.aopsd.continues or is_own(config.aopsd.weighting)):  # a class that is gone says nothing of itself
        found, wanted = config.aopsd.weighting, " or ".join(CONTINUED)
        raise UserError(f"{run}: no continuations with aopsd.weighting={found}. Choose a run with {wanted}.")
    threshold = probes.threshold if threshold is None else threshold
    if threshold < probes.threshold:
        own = f"{probes.threshold:g}, its aopsd.probes.threshold"
        raise UserError(f"--threshold {threshold:g}: the run probed only where |gap| >= {own}. Choose that or more.")
    known = load_patterns(config.aopsd.prompts, patterns)
    decode = decode or load_decoder(config)
    events, num_rollouts, num_probes = _find_events(source, steps, threshold, known, decode)
    if not events:
        counts = f"{num_rollouts} rollouts with {num_probes} probes"
        raise UserError(f"{run}: {counts}, none with |gap| >= {threshold:g}. Lower it, or choose other steps.")
    notes = [
        f"k counts tokens with the anchor; the run's probes have {probes.length} at most (the paper's table goes to "
        "16). A continuation that ended earlier counts with what it has.",
        f"Events of one rollout are {probes.length} tokens apart at least, taken from left to right.",
        "Patterns find phrases, not meaning: a cue need not correct anything, and a copied result goes unseen.",
    ]
    if (cap := probes.max_per_rollout) is not None:
        notes.append(f"The run probed only the {cap} largest gaps of a rollout (aopsd.probes.max_per_rollout).")
    tables = {title: _rows([e for e in events if chosen(e)], probes.length, decode) for title, chosen in GROUPS.items()}
    return Result(
        name="continuations",
        title="Correction cues and references to the private context in the teacher's continuations",
        settings={
            "run": str(run),
            "context": config.aopsd.context.kind,
            "|gap| at least": threshold,
            "steps": str(steps),
            "patterns": "; ".join(known.files),
        },
        samples={
            "rollouts": num_rollouts,
            "probes of the run": num_probes,
            "non-overlapping events": len(events),
            "of these gap > 0": sum(event.positive for event in events),
            "problems with an event": len({event.problem for event in events}),
        },
        tables=tables,
        figure=_figure(tables["All events"]),
        notes=notes,
    )


def load_decoder(config: Config, path: str | None = None) -> Decode:
    """Ids to text with the tokenizer at `path`, or the one of the config. Raises UserError if there is none."""
    if path and not Path(path).exists():
        raise UserError(f"--tokenizer {path}: no such folder (looked from {Path.cwd()}). Name one with a tokenizer.")
    name = path or (config.policy.get("tokenizer") or {}).get("name") or config.policy["model_name"]
    tokenizer = open_tokenizer(name, "Name a folder with one: --tokenizer DIR.")
    return lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def first_k(ends: Sequence[int], end: int | None) -> int | None:
    """The smallest k whose tokens reach `end`; `ends[k - 1]` is the length of the text of the first k tokens.

    >>> first_k([2, 8], 8), first_k([2, 8], 2), first_k([2, 8], None)
    (2, 1, None)
    """
    return None if end is None else next((k for k, reach in enumerate(ends, start=1) if reach >= end), len(ends))


def _find_events(
    run: Run, steps: Steps, threshold: float, known: Patterns, decode: Decode
) -> tuple[list[Event], int, int]:
    """The events, and how many rollouts and probes they were chosen from."""
    events, num_rollouts, num_probes = [], 0, 0
    for rollout in read_rollouts(run, steps):
        num_rollouts, num_probes = num_rollouts + 1, num_probes + len(rollout.probes)
        free = 0  # the first position after the last event's window
        for probe in sorted(rollout.probes, key=lambda probe: probe.position):
            if abs(probe.gap) >= threshold and probe.position >= free:
                free = probe.position + run.config.aopsd.probes.length
                events.append(_event(rollout.problem_id, probe, known, decode, rollout.where))
    return events, num_rollouts, num_probes


def _event(problem: str, probe: Probe, known: Patterns, decode: Decode, where: str) -> Event:
    tokens = [probe.anchor, *probe.suffix]
    if probe.anchor_text is None:
        raise UserError(f"{where}: `anchor_text` of a probe is missing. Restore the file.")
    found = decode([probe.anchor])
    if found and found.strip() != probe.anchor_text.strip():  # special tokens decode to nothing and prove nothing
        sides = f"{probe.anchor_text!r} in the run, {found!r} with this tokenizer"
        raise UserError(f"{where}: token {probe.anchor} is {sides}. Name the run's own: --tokenizer DIR.")
    text = decode(tokens)
    matches = {kind: first_end(text, known.by_kind[kind]) for kind in KINDS}
    first: dict[str, int | None] = dict.fromkeys(KINDS)
    if any(end is not None for end in matches.values()):  # few continuations need the texts of their parts
        ends = [len(decode(tokens[:k]).rstrip("\ufffd")) for k in range(1, len(tokens) + 1)]
        first = {kind: first_k(ends, end) for kind, end in matches.items()}
    return Event(problem, probe.gap > 0, tokens, first)


def _rows(events: Sequence[Event], length: int, decode: Decode) -> list[dict]:
    if not events:
        return []
    cells = [(kind, k) for kind in KINDS for k in range(1, length + 1)]
    sums: dict[str, np.ndarray] = {}
    for event in events:
        counted = [1, *(event.has(kind, k) for kind, k in cells)]
        sums[event.problem] = sums.get(event.problem, 0) + np.array(counted, dtype=float)
    shares = dict(zip(cells, estimate(sums, lambda totals: ratio(totals[:, 1:], totals[:, :1])), strict=True))
    rows = []
    for k in range(1, length + 1):
        row: dict = {"k": k, "events": len(events)}
        for kind in KINDS:
            new = [event for event in events if event.first[kind] == k]
            row[HEADS[kind]] = sum(event.has(kind, k) for event in events)
            row[f"share of events, {kind}"] = shares[kind, k]
            row[f"first at this k, {kind}"] = decode(new[0].tokens[:k]).strip() if new else ""
        rows.append(row)
    return rows


def _figure(rows: Sequence[dict]) -> str:
    with svg.drawing(5.7, 3.6) as figure:
        axes, ks = figure.subplots(), [row["k"] for row in rows]
        for kind, color, marker in (("correction", svg.BLUE, "o"), ("reference", svg.ORANGE, "s")):
            shares = [row[f"share of events, {kind}"] for row in rows]
            look = {"color": color, "marker": marker, "label": HEADS[kind]}
            svg.with_errors(axes, ks, [share.value for share in shares], intervals_of(shares), **look)
        axes.set(xlabel="k, tokens with the anchor", ylabel=f"share of {rows[0]['events']} events")
        axes.set_ylim(bottom=0)
        axes.set_xticks(ks)
        figure.legend(loc="outside upper left", ncols=2)
        return svg.to_svg(figure)
