"""Small run folders whose every number can be worked out by hand, for the tests of diagnostics."""

from nemo_aopsd.files import write_jsonl

LOGPROB = -1.0  # of every token under the student, so that a gap can be chosen freely


def write_config(
    run, *, weighting="continuation", context="dag_frontier", curriculum="competence", extra="", model="m"
):
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").write_text(
        f"""policy: {{model_name: {model}, max_total_sequence_length: 4096, generation: {{max_new_tokens: 16}}}}
data: {{train: {{data_path: {run.parent}/problems.jsonl}}}}
logger: {{log_dir: {run}}}
aopsd:
  weighting: {weighting}
  context: {{kind: {context}}}
  curriculum: {{name: {curriculum}}}
{extra}"""
    )
    return run


def write_problems(folder, answers):
    nodes = {"nodes": [{"id": "a", "statement": "x"}], "edges": []}
    rows = [{"id": key, "problem": "?", "answer": answer, "dag": nodes} for key, answer in answers.items()]
    write_jsonl(folder / "problems.jsonl", rows)


def rollout(problem, gaps=(), *, text="", progress=None, failed=None, epoch=0, step=1, probes=(), dropped=False):
    """A record as records.py writes it; `failed` None means not judged."""
    return {
        "epoch": epoch,
        "step": step,
        "problem_id": problem,
        "student_prompt": [1],
        "teacher_prompt": [1],
        "response": list(range(len(gaps))),
        "finished": True,
        "response_text": text,
        "judge_failed": failed,
        "judge_cut": None if failed is None else False,
        "judge_text": None,
        "reached": None,
        "progress": progress,
        "disclosed_share": None,
        "dropped": dropped,
        "student_logprobs": None if dropped else [LOGPROB] * len(gaps),
        "teacher_logprobs": None if dropped else [LOGPROB + gap for gap in gaps],
        "weights": None if dropped else [1.0] * len(gaps),
        "probes": list(probes),
    }


def write_rollouts(run, records):
    steps = sorted({record["step"] for record in records})
    for step in steps:
        lines = [record for record in records if record["step"] == step]
        write_jsonl(run / "rollouts" / f"step_{step:06d}.jsonl", lines)
