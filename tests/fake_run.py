"""A synthetic run folder with plausible numbers, for tests of what people see. No model is involved."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nemo_aopsd.files import read_jsonl, write_jsonl

PROBLEM = 'Let $x < y$ & suppose <b>x</b> + y = 10, with \\(xy = 21\\). Find $y - x$. "Quotes" and {braces} stay.'
TEXT = "The sum is 10 , so x = 10 - y and y ( 10 - y ) = 21 . Hence y = 7 or 3 . But we note that <x> & $y$"
WORDS = TEXT.split()
LEAK = " as the given solution says"


def problem_record(index: int, num_nodes: int = 6) -> dict[str, Any]:
    nodes = [
        {
            "id": str(node),
            "statement": f"checkpoint {node}: $a_{{{node}}} = \\frac{{{node}}}{{2}}$ & a_{node} < {node + 1}",
        }
        for node in range(1, num_nodes + 1)
    ]
    edges = [[str(max(1, node // 2)), str(node)] for node in range(2, num_nodes + 1)]
    return {"id": f"p{index:03d}", "problem": PROBLEM, "answer": "4", "dag": {"nodes": nodes, "edges": edges}}


def write_run(
    folder: Path,
    *,
    num_epochs: int = 3,
    steps_per_epoch: int = 6,
    batch: int = 8,
    num_held_out: int = 40,
    num_samples: int = 8,
    evaluations: bool = True,
    context: str = "dag_frontier",
    weighting: str = "continuation",
    curriculum: str = "competence",
    pieces: bool = True,
    seed: int = 0,
) -> Path:
    """Write the folder and the problems file beside it; returns the folder."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    problems = [problem_record(index) for index in range(steps_per_epoch * batch)]
    data = folder.parent / "problems.jsonl"
    write_jsonl(data, problems)
    settings = {"context": context, "weighting": weighting, "curriculum": curriculum}
    settings |= {"epochs": max(1, num_epochs), "size": 32 if batch % 4 else batch}
    _write_config(folder, data, num_samples, evaluations, **settings)
    judged = context == "dag_frontier" or curriculum == "competence"
    metrics, step = [], 0
    for epoch in range(num_epochs):
        for _ in range(steps_per_epoch):
            step += 1
            rollouts = [
                _rollout(rng, epoch, step, rng.choice(problems), judged, context, weighting, pieces)
                for _ in range(batch)
            ]
            write_jsonl(folder / "rollouts" / f"step_{step:06d}.jsonl", rollouts)
            metrics.append(_metrics(rng, epoch, step, rollouts, judged, context, weighting))
    if metrics:
        write_jsonl(folder / "metrics.jsonl", metrics)
    states = [_competence(rng, epoch, problems, curriculum == "competence") for epoch in range(num_epochs + 1)]
    if num_epochs or curriculum == "competence":
        write_jsonl(folder / "competence.jsonl", states)
    if evaluations:
        for epoch in range(num_epochs + 1):
            _write_evaluation(rng, folder / "eval", epoch, num_held_out, num_samples)
    return folder


def rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Each record of a file of lines becomes what `change` makes of it."""
    write_jsonl(path, [change(record) for _, record in read_jsonl(path)])


def stopped(folder: Path, steps: int, epochs: int, evaluations: int) -> Path:
    """A run as a kill leaves it: of 3 epochs of 4 steps so many, and of the 4 evaluations."""
    run = write_run(folder, num_epochs=3, steps_per_epoch=4, batch=4, num_held_out=2, num_samples=1)
    for name, kept in (("metrics.jsonl", steps), ("competence.jsonl", epochs + 1)):
        (run / name).write_text("".join((run / name).read_text().splitlines(keepends=True)[:kept]))
    for epoch in range(evaluations, 4):
        (run / f"eval/epoch_{epoch:03d}.json").unlink()
    return run


def _write_config(folder, data, num_samples, evaluations, context, weighting, curriculum, epochs, size) -> None:
    held_out = data if evaluations else "null"
    (folder / "config.yaml").write_text(
        f"""# aopsd train examples/demo.yaml aopsd.seed=0
policy:
  model_name: tiny-qwen3
  max_total_sequence_length: 1024
  precision: float32
  optimizer: {{kwargs: {{lr: 5.0e-6}}}}
  generation: {{max_new_tokens: 128, temperature: 1.0}}
data: {{train: {{data_path: {data}}}}}
logger: {{log_dir: {folder}}}
checkpointing: {{enabled: true, checkpoint_dir: {folder}/checkpoints, save_period: 10, keep_top_k: 2}}
aopsd:
  num_prompts_per_step: {size}
  max_num_epochs: {epochs}
  weighting: {weighting}
  context: {{kind: {context}}}
  curriculum: {{name: {curriculum}}}
  evaluation: {{data_path: {held_out}, num_samples: {num_samples}, max_new_tokens: 128}}
"""
    )


def _rollout(rng, epoch, step, problem, judged, context, weighting, with_pieces) -> dict[str, Any]:
    num_tokens = rng.randint(40, 110)
    words = [" " + rng.choice(WORDS) for _ in range(num_tokens)]
    if rng.random() < 0.02 + 0.02 * epoch:
        words[num_tokens // 2] = LEAK
    student = [-abs(rng.gauss(0, 0.6)) for _ in words]
    gaps = [rng.gauss(0, 0.08) if rng.random() > 0.05 else rng.choice((-1, 1)) * rng.expovariate(0.5) for _ in words]
    ids = [node["id"] for node in problem["dag"]["nodes"]]
    failed = judged and rng.random() < 0.04
    reached = ids[: rng.randint(0, min(len(ids), 2 + epoch * 2))] if judged and not failed else []
    disclosed = {"dag_full": 1.0, "dag_frontier": min(1.0, (len(reached) + 2) / len(ids))}.get(context)
    probes = [_probe(rng, t, gap) for t, gap in enumerate(gaps) if abs(gap) >= 2] if weighting == "continuation" else []
    weights = [1.0] * num_tokens
    for probe in probes:
        weights[probe["position"]] = probe["weight"]
    record = {
        "epoch": epoch,
        "step": step,
        "problem_id": problem["id"],
        "student_prompt": [1, 2, 3],
        "teacher_prompt": [1, 2, 3, 4],
        "response": list(range(num_tokens)),
        "finished": rng.random() > 0.1,
        "response_text": "".join(words),
        "judged": reached if judged else None,
        "judge_failed": failed if judged else None,
        "judge_cut": False if judged else None,
        "judge_text": json.dumps(reached) if judged else None,
        "reached": reached if judged else None,
        "progress": len(reached) / len(ids) if judged and not failed else None,
        "disclosed_share": disclosed,
        "dropped": False,
        "student_logprobs": student,
        "teacher_logprobs": [a + b for a, b in zip(student, gaps, strict=True)],
        "weights": weights,
        "probes": probes,
    }
    return record | ({"pieces": words} if with_pieces else {})


def _probe(rng, position, gap) -> dict[str, Any]:
    beta = 1.0 if gap > 0 else 2.5
    nll = None if rng.random() < 0.05 else rng.gammavariate(2.0, 0.5 if gap > 0 else 1.0)
    suffix = [] if nll is None else [rng.randrange(len(WORDS)) for _ in range(7)]
    return {
        "position": position,
        "gap": gap,
        "anchor": rng.randrange(len(WORDS)),
        "anchor_text": " " + rng.choice(WORDS),
        "suffix": suffix,
        "suffix_text": "".join(" " + WORDS[token] for token in suffix),
        "nll": nll,
        "weight": 1.0 if nll is None else nll / beta * math.exp(1 - nll / beta),
    }


def _metrics(rng, epoch, step, rollouts, judged, context, weighting) -> dict[str, float]:
    gaps = [t - s for r in rollouts for t, s in zip(r["teacher_logprobs"], r["student_logprobs"], strict=True)]
    probes = [probe for rollout in rollouts for probe in rollout["probes"]]
    times = {"rollout": 3.1, "judge": 0.9, "teacher": 0.6, "student": 0.5, "probes": 0.4, "update": 1.2}
    seconds = {f"time/{stage}": mean * rng.uniform(0.8, 1.2) for stage, mean in times.items()}
    metrics = {
        "epoch": epoch,
        "step": step,
        "rollout/count": len(rollouts),
        "rollout/mean_tokens": sum(len(rollout["response"]) for rollout in rollouts) / len(rollouts),
        "rollout/truncated": sum(not rollout["finished"] for rollout in rollouts),
        "rollout/leak_rate": sum("given solution" in rollout["response_text"] for rollout in rollouts) / len(rollouts),
        "context/dropped": 0,
        "gap/mean_abs": sum(map(abs, gaps)) / len(gaps),
        "train/loss": 0.02 * math.exp(-step / 9) + rng.gauss(0, 0.002),
        "train/grad_norm": 0.4 * math.exp(-step / 20) * rng.uniform(0.8, 1.2),
        "train/frac_clipped": 0.0,
        **seconds,
        "time/step": sum(seconds.values()),
        "time/total": step * sum(seconds.values()),
    }
    if judged:
        known = [rollout["progress"] for rollout in rollouts if rollout["progress"] is not None]
        metrics["judge/failed"] = sum(rollout["judge_failed"] for rollout in rollouts)
        metrics["judge/cut"] = 0
        if known:
            metrics["dag/progress"] = sum(known) / len(known)
    if context.startswith("dag"):
        metrics["dag/disclosed_share"] = sum(rollout["disclosed_share"] for rollout in rollouts) / len(rollouts)
    if weighting != "uniform":
        weights = [weight for rollout in rollouts for weight in rollout["weights"]]
        percents = {f"weight/p{percent}": float(np.percentile(weights, percent)) for percent in (5, 50, 95)}
        metrics |= {"weight/mean": sum(weights) / len(weights), **percents}
    if weighting == "continuation":
        metrics["probe/count"] = len(probes)
        metrics["probe/positive"] = sum(probe["gap"] > 0 for probe in probes)
        metrics["probe/empty"] = sum(probe["nll"] is None for probe in probes)
        metrics["probe/trigger_rate"] = len(probes) / len(gaps)
        if probes:
            metrics["probe/weight_mean"] = sum(probe["weight"] for probe in probes) / len(probes)
    return metrics


def _competence(rng, epoch, problems, judged) -> dict[str, Any]:
    values = dict.fromkeys((problem["id"] for problem in problems), None)
    if judged:
        values = {key: min(1.0, max(0.0, rng.gauss(0.35 + 0.12 * epoch, 0.2))) for key in values}
        values[problems[0]["id"]] = None
    return {"epoch": epoch, "competence": values, "order": sorted(values)}


def _write_evaluation(rng, folder, epoch, num_problems, num_samples) -> None:
    from nemo_aopsd.evaluation.epochs import summarize

    skill = random.Random(7)
    lines = []
    for index in range(num_problems):
        chance = min(1.0, max(0.0, skill.gauss(0.4, 0.25) + 0.07 * epoch))
        lines += [
            {
                "problem_id": f"h{index:03d}",
                "sample": sample,
                "seed": 1,
                "response_text": "...",
                "num_tokens": rng.randint(40, 120),
                "finished": rng.random() > 0.08,
                "correct": rng.random() < chance,
                "reason": "",
                "leak": rng.random() < 0.01 + 0.015 * epoch,
            }
            for sample in range(num_samples)
        ]
    write_jsonl(folder / f"epoch_{epoch:03d}.jsonl", lines)
    counted = summarize(lines, num_samples) | {"num_trained_on": 0}
    summary = {"epoch": epoch, **counted, "seconds": 12.3}
    (folder / f"epoch_{epoch:03d}.json").write_text(json.dumps(summary))
    (folder / f"epoch_{epoch:03d}.settings.json").write_text("{}")
