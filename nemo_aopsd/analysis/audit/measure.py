"""From labels and NLLs to shares, enrichment and agreement: pure functions."""

from collections import Counter
from collections.abc import Mapping, Sequence

from nemo_aopsd.analysis.audit.labels import LABELS, Record
from nemo_aopsd.analysis.audit.sampling import Sample, bin_of
from nemo_aopsd.stats import wilson_interval


def by_bin(labels: Mapping[str, str], nlls: Mapping[str, float], sample: Sample) -> Record:
    """Counts, base rates, and for each NLL bin the share of each label with its 95 % Wilson interval and enrichment.

    Enrichment is the share in the bin over the base rate, None where either is unknown or the base rate is 0.
    Events of one rollout are not independent, so the intervals are too narrow rather than too wide.
    """
    counts = [Counter() for _ in sample.population_per_bin]
    for event, label in labels.items():
        counts[bin_of(nlls[event], sample.edges)][label] += 1
    rates = base_rates(counts, sample.population_per_bin, weighted=sample.by_bin)
    bins = [
        {
            "population": population,
            "drawn": drawn,
            "labelled": count.total(),
            "labels": {label: _share(count[label], count.total(), rates[label]) for label in LABELS},
        }
        for count, population, drawn in zip(counts, sample.population_per_bin, sample.drawn_per_bin, strict=True)
    ]
    total = {label: sum(count[label] for count in counts) for label in LABELS}
    return {"labelled": len(labels), "counts": total, "base_rate": rates, "bins": bins}


def base_rates(counts: Sequence[Counter], population: Sequence[int], *, weighted: bool) -> dict[str, float | None]:
    """Share of each label among all events of the run.

    Of a simple random sample it is the share in the sample. A sample drawn by bin is `weighted`: each bin counts with
    its size in the run; None as long as a bin that has events has no label.
    """
    labelled = sum(count.total() for count in counts)
    if not labelled:
        return dict.fromkeys(LABELS)
    if not weighted:
        return {label: sum(count[label] for count in counts) / labelled for label in LABELS}
    filled = [(count, size) for count, size in zip(counts, population, strict=True) if size]
    if any(not count.total() for count, _ in filled):
        return dict.fromkeys(LABELS)
    whole = sum(population)
    return {label: sum(size / whole * count[label] / count.total() for count, size in filled) for label in LABELS}


def agreement(one: Mapping[str, str], other: Mapping[str, str]) -> Record:
    """Cohen's kappa over the events that both labelled: (p_o - p_e) / (1 - p_e).

    p_o is the share on which both agree, p_e the one that their label frequencies alone would give. Kappa is None
    without a common event, or where both gave every event one same label (p_e = 1).

    >>> agreement(dict(enumerate("uurl")), dict(enumerate("uurr")))["kappa"]
    0.6
    """
    both = [event for event in one if event in other]
    if not both:
        return {"events": 0, "agree": 0, "kappa": None}
    agree = sum(one[event] == other[event] for event in both)
    first, second = (Counter(labels[event] for event in both) for labels in (one, other))
    expected = sum(first[label] * second[label] for label in first)  # p_e, times n squared
    kappa = None if expected == len(both) ** 2 else (agree * len(both) - expected) / (len(both) ** 2 - expected)
    return {"events": len(both), "agree": agree, "kappa": kappa}


def _share(events: int, trials: int, base_rate: float | None) -> Record:
    if not trials:
        return {"count": 0, "share": None, "low": None, "high": None, "enrichment": None}
    low, high = wilson_interval(events, trials)
    enrichment = events / trials / base_rate if base_rate else None
    return {"count": events, "share": events / trials, "low": low, "high": high, "enrichment": enrichment}
