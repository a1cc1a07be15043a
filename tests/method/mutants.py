"""Mutants of the method's formulas: small changes, each of which a test must notice.

    python -m tests.method.mutants [WORD ...]     all of them, or those whose file or text contains one of the words

Each is written into a copy of the package, and the tests named beside its file run until one fails. A line a mutant
says how it ended; the exit status is 1 if one survived, or is out of date. Takes about eight minutes on one core.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import hypothesis  # noqa: F401 (the libraries of the tests, loaded once for all children)
import pytest
import torch  # noqa: F401
import transformers  # noqa: F401

from tests import REPO

SETS = {
    "STEP": "method/test_step.py method/test_step_objectives.py method/test_step_reference.py",
    "OBJECTIVES": "method/test_objective_values.py method/test_divergences.py method/test_objectives.py",
}
# A file and its tests; below it, what the file holds exactly once => what stands there instead.
TABLE = r"""
method/weighting.py : method/test_weighting.py
    math.exp(1 - nll / beta) => math.exp(-nll / beta)
    return nll / beta * => return nll *
    config.beta_positive if gap > 0 else => config.beta_positive if gap < 0 else
    self.positive if gap > 0 else => self.positive if gap < 0 else
    gap.abs() >= config.threshold => gap.abs() > config.threshold
    key=lambda t: -abs(gap[t].item()) => key=lambda t: abs(gap[t].item())
    nll for gap, nll in known if gap > 0] => nll for gap, nll in known if gap < 0]
    max(median(values), LEAST_BETA) => median(values)
    (*medians, median(nlls)) => (*medians, mean(nlls))
    median(nlls))[-SPAN:] => median(nlls))[-SPAN - 1 :]
    _advantage(weights, gaps) / => sum(weights) /
    weight * abs(gap) for => weight * gap for
    [row.mask].abs() => [row.mask]
    for position in triggered(gap, config): => for position in over_threshold(gap, config).nonzero().flatten().tolist():
    weights[triggered(gap, config)] = 0.0 => weights[over_threshold(gap, config)] = 0.0
    old - level => old + level
    .sample(weights, len(weights)) => .choices(weights, k=len(weights))
method/weighting.py : method/test_probes.py STEP
    for probes in compress(probes_B, in_loss) for probe => for probes in probes_B for probe
    rows = [row for row in scored if row.draft.in_loss(aopsd)] => rows = scored
types.py : method/test_weighting.py OBJECTIVES
    self.teacher_logprobs - self.old_logprobs => self.old_logprobs - self.teacher_logprobs
method/probes.py : method/test_probes.py STEP
    surprises(compress(probes_B, in_loss)) => surprises(probes_B)
    if gap[t] > 0 else [] => if gap[t] < 0 else []
    if config.score_anchor else logprobs[1:] => if config.score_anchor else logprobs
    (-scored.mean()) => (-scored.sum())
    (-scored.mean()) => scored.mean()
    starts_B, config.length) => starts_B, config.length + 1)
method/rollout.py : STEP
    self.teacher_logprobs - self.student_logprobs => self.student_logprobs - self.teacher_logprobs
    self.verdict.failed or  => 
    largest_closed_subset(self.problem.graph, verdict.judged) => verdict.judged
    self.output.finished or self.is_demonstration or => self.output.finished or
method/step.py : STEP
    probe = probe_room(config.aopsd) => probe = 0
method/reward.py : STEP
    if not draft.output.finished: => if False:
    undecided=graded.reason == "ungradable" => undecided=False
    [tuple(draft.student_prompt) for draft in drafts] => [0] * len(drafts)
method/demonstrations.py : method/test_step_objectives.py
    finished=len(tokens) <= room => finished=len(tokens) < room
data/dag.py : data/test_dag.py method/test_context.py
    len(reached) / len(graph) => len(reached) / max(len(graph) - 1, 1)
    if node in judged and reached.issuperset(graph.pred[node]) => if node in judged
    if node not in inside and inside => if inside
method/context.py : method/test_context.py
    only=reached | ahead) => only=reached)
    len(reached | frontier(problem.graph, reached)) / => len(reached) /
method/judge.py : method/test_judge.py
    (lists or found)[-1] => (lists or found)[0]
    return ids if ids <= set(known) else None => return ids & set(known)
    says_something and re.search => re.search
    (?<!\w){re.escape(quote)}(?!\w) => {re.escape(quote)}
    if id in known] => ]
method/judge.py : method/test_judge_log_odds.py
    answers[num_yes:].logsumexp(0) => answers[num_yes:].max()
    thinking = False if aopsd.judge.kind => thinking = None if aopsd.judge.kind
    sorted(yes - no), => sorted(yes),
evaluation/calibration.py : evaluation/test_calibration.py
    f1 > best and below < score => f1 > best
    (a == b) / 2 => (a == b)
cli/evaluate.py : evaluation/test_evaluate_command.py
    max(kept, key => min(kept, key
method/curriculum.py : method/test_curriculum.py
    (1 - rate) * before + rate * now => rate * before + (1 - rate) * now
    "competence_reversed" else -1 => "competence_reversed" else 1
    mean(progress[problem_id]) if => max(progress[problem_id]) if
    quarter = len(mixed) // 4 => quarter = len(mixed) // 3
    batches[max(index - 1, 0)] += => batches[index] +=
    batches[min(index + 1, len(strata) - 1)] += => batches[index] +=
method/objectives/base.py : OBJECTIVES
    .sum() / num_tokens => .sum() / mask.sum()
    .sum(-1) / lengths) => .sum(-1))
    .sum() / num_rows => .sum() / len(values)
    1 - config.ratio_clip_min => 1 - config.ratio_clip_max
    clipped * advantages < ratio * advantages => clipped != ratio
method/objectives/pg.py : OBJECTIVES
    teacher_logprobs - logprobs) => logprobs - teacher_logprobs)
    clamp(-bound, bound) => clamp(max=bound)
    (weights * (teacher_logprobs - logprobs)).detach() => weights * (teacher_logprobs - logprobs)
    + config.reward_weight * of_reward => + of_reward
    (of_reward.sign() * of_teacher) => (of_teacher)
    1 + config.evidence_clip) => 1 - config.evidence_clip)
    loss = -self.reduce => loss = self.reduce
method/objectives/divergences.py : OBJECTIVES
    terms.clamp(max=token_clip) => terms.clamp(-token_clip, token_clip)
    return _terms(student, teacher).sum(-1) => return _terms(teacher, student).sum(-1)
    math.log(beta), student + math.log1p(-beta) => math.log1p(-beta), student + math.log(beta)
    return beta * forward_kl(mixture, teacher) + (1 - beta) => return (1 - beta) * forward_kl(mixture, teacher) + beta
    if form == "renorm": => if form == "teacher_renorm":
    if form in ("renorm", "teacher_renorm") => if form == "renorm"
    1.0).log() - rest) => 1.0).log() + rest)
method/objectives/fkl.py : OBJECTIVES
    top_k_form = "tail" => top_k_form = "none"
    divergence.clamp(max=self.config.sum_clip) => divergence.clamp(min=self.config.sum_clip)
method/objectives/dash.py : OBJECTIVES
    -kappa * (values - mean) => kappa * (values - mean)
    return 1 + _shifted(offset, 1) => return 1 + offset
method/objectives/eopd.py : OBJECTIVES
    entropy >= self.config.entropy_threshold => entropy > self.config.entropy_threshold
    policy_loss + self.config.entropy_weight * => policy_loss +
method/objectives/gkd.py : OBJECTIVES
    self.config.jsd_beta) => 0.5)
method/objectives/minillm.py : OBJECTIVES
    divergence - surrogate => divergence + surrogate
    .flip(0)[1:] => .flip(0)[:-1]
    (values - mean) / (deviation => values / (deviation
method/objectives/grpo.py : OBJECTIVES
    loss = -self.reduce => loss = self.reduce
method/reward.py : OBJECTIVES
    stdev(group) + => 0.5 +
    (reward - mean(group)) => reward
method/objectives/sft.py : OBJECTIVES
    loss = -self.reduce => loss = self.reduce
run/metrics.py : run/test_metrics.py
    over_threshold(gap, config).sum() => (gap >= config.threshold).sum()
    _weight_metrics(in_loss) => _weight_metrics(scored)
    for row in in_loss for probe => for row in scored for probe
stats.py : test_stats.py
    math.comb(num_samples - num_correct, k)) / ways => math.comb(num_samples - num_correct, k)) / num_samples
    rate * (1 - rate) / num_trials + z * z / (4 => rate * (1 - rate) / num_trials + z * z / (2
    inv_cdf((1 + level) / 2) => inv_cdf(level)
"""


def mutants() -> list[tuple[str, list[str], str, str]]:
    """File, tests, old text and new text."""
    found, file, tests = [], "", []
    for line in TABLE.strip().splitlines():
        if line.startswith(" "):
            old, _, new = line.strip().partition(" =>")
            found.append((file, tests, old, new.strip()))
        else:
            file, _, names = line.partition(" : ")
            tests = [f"tests/{path}" for name in names.split() for path in SETS.get(name, name).split()]
    return found


def passes(copy: Path, tests: list[str]) -> bool:
    """Whether all tests pass on the copy, in a child that finds the libraries loaded already."""
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("nemo_aopsd", "tests")]:
            del sys.modules[name]
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        os._exit(pytest.main(["-xq", "--assert=plain", "-p", "no:cacheprovider", "-m", "not slow", *tests]))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1, 2), f"pytest ended with {status}"  # 2: the mutant cannot even be imported
    return status == 0


def main(words: list[str]) -> int:
    chosen = [each for each in mutants() if not words or any(word in f"{each[0]} {each[2]}" for word in words)]
    counts = {"killed": 0, "SURVIVED": 0, "OUT OF DATE": 0}
    sys.dont_write_bytecode = True  # a mutant may have the age and size of the file before it
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        for folder in ("nemo_aopsd", "tests", "examples", "docs"):
            shutil.copytree(REPO / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md"):
            shutil.copy(REPO / file, copy)
        assert passes(copy, sorted({test for each in chosen for test in each[1]})), "the tests fail without a mutant"
        for file, tests, old, new in chosen:
            path, start = copy / "nemo_aopsd" / file, time.monotonic()
            text = path.read_text(encoding="utf-8")
            outcome = "OUT OF DATE"
            if text.count(old) == 1:
                path.write_text(text.replace(old, new), encoding="utf-8")
                outcome = "SURVIVED" if passes(copy, tests) else "killed"
                path.write_text(text, encoding="utf-8")
            counts[outcome] += 1
            print(f"{outcome:<12}{time.monotonic() - start:5.1f} s  {file}: {old} => {new}", flush=True)
    print(", ".join(f"{number} {outcome}" for outcome, number in counts.items()))
    return int(counts["killed"] < len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
