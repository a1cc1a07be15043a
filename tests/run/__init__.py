"""What a run leaves behind, to compare one that was killed with one that was not."""

import json


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_clock(line):
    return {key: value for key, value in line.items() if key not in ("seconds", "train_seconds") and key[:5] != "time/"}


def outcome(folder):
    """Metrics, rollouts, evaluations, competence, and states of the checkpoints that are kept, old to new."""
    rollouts = {path.name: read(path) for path in sorted((folder / "rollouts").iterdir())}
    evals = {
        path.name: [
            without_clock(line) for line in (read(path) if path.suffix == ".jsonl" else [json.loads(path.read_text())])
        ]
        for path in sorted((folder / "eval").iterdir())
    }
    states = [
        without_clock(json.loads(path.read_text())) for path in sorted((folder / "checkpoints").glob("*/state.json"))
    ]
    metrics = [without_clock(line) for line in read(folder / "metrics.jsonl")]
    return metrics, rollouts, evals, read(folder / "competence.jsonl"), states
