"""What the audit found: `report.json`, `report.md` and `enrichment.svg` in `RUN/audit/`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from nemo_aopsd.analysis.audit.figure import enrichment_figure
from nemo_aopsd.analysis.audit.labels import LABELS, load_events, read_labels
from nemo_aopsd.analysis.audit.measure import agreement, by_bin
from nemo_aopsd.analysis.audit.sampling import bin_name, read_drawn, read_sample
from nemo_aopsd.analysis.tables import markdown_table
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import atomic_write

PAPER_LEAKAGE = "The paper labels 91.35 % of its events with L ≥ 4 as leakage (15,043 events in all)."

Record = dict[str, Any]


def write_report(run: Path) -> Record:
    """Compare labels with NLLs, write the three files and return what `report.json` holds.

    Raises UserError without a sample or a label, or where labels belong to another sample.
    """
    folder = run / "audit"
    nlls, sample = _read_key(run)
    labels, labellers = {}, {}
    for path in sorted((folder / "labels").glob("*.jsonl")):
        origin, found, unread = read_labels(path)
        _check_known(found, nlls, path)
        if found or unread:
            labels[path.stem] = found
            labellers[path.stem] = {"origin": origin, "unread": unread, **by_bin(found, nlls, sample)}
    if not labellers:
        raise UserError(
            f"{folder / 'labels'}: no label yet. Label by hand with `aopsd audit label`, or `aopsd audit judge`."
        )
    record = {
        "sample": sample,
        "bins": [bin_name(index, sample["edges"]) for index in range(len(sample["edges"]) + 1)],
        "labellers": labellers,
        "agreement": [
            {"labellers": [one, other], **agreement(labels[one], labels[other])}
            for one, other in combinations(labels, 2)
        ],
    }
    atomic_write(folder / "enrichment.svg", enrichment_figure(record))
    atomic_write(folder / "report.md", "\n".join(_markdown(record)) + "\n")
    atomic_write(folder / "report.json", json.dumps(record, ensure_ascii=False, indent=1) + "\n")
    return record


def summary_lines(record: Record) -> Iterator[str]:
    """What `aopsd audit report` says."""
    last = record["bins"][-1]
    for name, found in record["labellers"].items():
        counts = ", ".join(f"{label} {count}" for label, count in found["counts"].items())
        yield f"{name}: {found['labelled']} of {_drawn(record)} labelled: {counts}; {found['unread']} answers unread"
        yield f"  leakage at {last}: {_share(found['bins'][-1]['labels']['leakage'], found['bins'][-1]['labelled'])}"
    for pair in record["agreement"]:
        yield _agreement_line(pair)


def _markdown(record: Record) -> Iterator[str]:
    sample = record["sample"]
    how = "drawn by bin, as evenly as the bins allow" if sample["by_bin"] else "a simple random sample"
    yield "# Audit of continuation events"
    yield ""
    yield (
        f"{_drawn(record)} of {sum(sample['population_per_bin'])} events, {how}, seed {sample['seed']}; "
        f"{sample['num_empty']} probes with an empty continuation left out; rollouts up to {sample['last_file']}. "
        "Labellers saw neither L nor gap nor weight. Brackets: 95 % Wilson intervals, which take events as "
        "independent; those of one rollout are not, so the truth is wider. × is the share over the base rate. "
        f"{PAPER_LEAKAGE}"
    )
    for name, found in record["labellers"].items():
        yield from ["", f"## {name} ({_origin(found['origin'])})", ""]
        yield f"{found['labelled']} of {_drawn(record)} events labelled; answers without a label: {found['unread']}."
        yield from ["", _table(record, found)]
    yield from ["", "## Agreement", ""]
    if not record["agreement"]:
        yield "One labeller only: not known. A second one labels under another `--name`."
    yield from (f"- {_agreement_line(pair)}" for pair in record["agreement"])


def _table(record: Record, found: Record) -> str:
    rows = [
        [name, row["population"], row["drawn"], row["labelled"]]
        + [_share(row["labels"][label], row["labelled"]) for label in LABELS]
        for name, row in zip(record["bins"], found["bins"], strict=True)
    ]
    whole = [sum(record["sample"]["population_per_bin"]), _drawn(record), found["labelled"]]
    rates = [_base(found["base_rate"][label], found["counts"][label]) for label in LABELS]
    header = ["L, nats a token", "events in the run", "drawn", "labelled", *LABELS]
    return markdown_table(header, [*rows, ["base rate", *whole, *rates]])


def _share(cell: Record, trials: int) -> str:
    if cell["share"] is None:
        return "no label"
    times = "" if cell["enrichment"] is None else f" ×{cell['enrichment']:.2f}"
    return (
        f"{100 * cell['share']:.1f} % ({cell['count']} of {trials}) "
        f"[{100 * cell['low']:.1f}, {100 * cell['high']:.1f}]{times}"
    )


def _base(rate: float | None, count: int) -> str:
    known = "not known until each bin has labels" if rate is None else f"{100 * rate:.1f} %"
    return f"{known} ({count} labels)"


def _agreement_line(pair: Record) -> str:
    one, other = pair["labellers"]
    if not pair["events"]:
        return f"{one} and {other}: no event that both labelled"
    kappa = "undefined, both gave all events one label" if pair["kappa"] is None else f"{pair['kappa']:.3f}"
    return f"{one} and {other}: same label on {pair['agree']} of {pair['events']} events, Cohen's kappa {kappa}"


def _origin(origin: Record) -> str:
    return f"model {origin['model']}" if origin.get("kind") == "model" else "by hand"


def _drawn(record: Record) -> int:
    return sum(record["sample"]["drawn_per_bin"])


def _read_key(run: Path) -> tuple[dict[str, float], Record]:
    events = load_events(run)
    nlls = {line["id"]: line["nll"] for line in read_drawn(run / "audit", "key.jsonl", ("id", "nll"))}
    if nlls.keys() != {event["id"] for event in events}:
        raise UserError(f"{run / 'audit'}: events.jsonl and key.jsonl are not of one sample. Restore both.")
    return nlls, read_sample(run / "audit")


def _check_known(labels: dict[str, str], nlls: dict[str, float], path: Path) -> None:
    unknown = [event for event in labels if event not in nlls]
    if unknown:
        raise UserError(
            f"{path}: {len(unknown)} of {len(labels)} labels are of events outside this sample, such as {unknown[0]}. "
            "Move the file to the sample that it belongs to."
        )
