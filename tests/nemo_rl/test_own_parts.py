"""Parts of the user's own on NeMo RL: a whole run with one of each kind, and how an objective gets to a worker."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import ray
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from ray.exceptions import RayError

from nemo_aopsd import prompts
from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.schema import ObjectiveConfig
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.engines import nemo_rl
from nemo_aopsd.engines.nemo_rl.batches import training_batch
from nemo_aopsd.engines.nemo_rl.cluster import cluster_errors
from nemo_aopsd.engines.nemo_rl.own_loss import OwnLossFn
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_journal
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.run.trainer import train
from nemo_aopsd.types import TrainRow
from tests.nemo_rl.conftest import REPO

PARTS = REPO / "examples/my_parts.py"
OBJECTIVE = ObjectiveConfig(name=f"{PARTS}:HalfSquaredGap")
KEYS = {
    "aopsd.weighting": "RisingWeights",
    "aopsd.context.kind": "FirstCheckpoint",
    "aopsd.judge.kind": "NumberJudge",
    "aopsd.curriculum.name": "SortedOrder",
    "aopsd.objective.name": "HalfSquaredGap",
}


@pytest.mark.usefixtures("one_process")
def test_a_run_with_one_part_of_each_kind(overrides, turns, tmp_path):
    words = shutil.copytree(Path(prompts.__file__).with_name("tiny"), tmp_path / "words")
    (words / "student.txt").write_text("{problem} g: d + a.\n")
    named = [f"{key}={PARTS}:{name}" for key, name in KEYS.items()] + [f"aopsd.prompts={words}"]
    config = load_config(REPO / "examples/configs/aopsd_tiny_h100.yaml", [*overrides, *named])
    nemo_rl.check(config)
    problems, run = load_problems(config.data["train"]["data_path"]), Path(config.logger["log_dir"])
    engine = nemo_rl.build(config)
    before = engine.student_checksum()
    train(config, problems, None, engine, run, resume=False)
    assert engine.student_checksum() != before
    first, second = read_journal(run / "metrics.jsonl", "step")
    assert first["train/loss"] > 0 and second["train/grad_norm"] > 0
    batch, _ = engine.cluster.policy.batches
    for weights, mask in zip(batch["probe_weights"], batch["token_mask"], strict=True):
        length = int(mask.sum())
        assert weights[mask > 0].tolist() == pytest.approx([(t + 1) / length for t in range(length)])
    asked = read_journal(run / "rollouts/step_000001.jsonl")[0]["student_prompt"]
    assert engine.hf_tokenizer.decode(asked).endswith(". g: d + a.<|assistant|>")
    order = [row["problem_id"] for step in (1, 2) for row in read_journal(run / f"rollouts/step_{step:06d}.jsonl")]
    assert list(dict.fromkeys(order)) == sorted(problem.id for problem in problems)


def rows():
    """Two rows, the second with a token that does not count."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for prompt, response in (([4, 5], [6, 7, 8]), ([9], [10, 11])):
        values = [-torch.rand(len(response), generator=generator) for _ in range(3)]
        made.append(TrainRow(prompt, response, *values[:2], -values[2], torch.ones(len(response), dtype=torch.bool)))
    made[1].mask[1] = False
    return made


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean"])
@pytest.mark.parametrize("garbage", [0.0, torch.nan, torch.inf])
def test_the_loss_is_the_objective_s_mean_over_the_tokens_that_count(aggregation, garbage):
    made = rows()
    batch = training_batch(made, pad_id=0, divisible_by=4, rows_multiple=4)
    assert "advantages" not in batch and batch.size == 4
    current = torch.full((4, batch["input_ids"].shape[1] - 1), garbage)
    terms = []
    for target, row in zip(current, made, strict=False):
        now = row.old_logprobs + 0.1
        start = len(row.prompt) - 1
        target[start : start + len(now)] = torch.where(row.mask, now, garbage)
        terms.append((row.weights * (now - row.teacher_logprobs) ** 2 / 2)[row.mask])
    expected = torch.cat(terms).mean() if aggregation == "token_mean" else (terms[0].mean() + terms[1].mean()) / 2
    loss_fn = OwnLossFn(build_objective(ObjectiveConfig(name=OBJECTIVE.name, aggregation=aggregation)))
    current.requires_grad_(True)
    loss, metrics = loss_fn(current, batch, batch["sample_mask"].sum(), batch["token_mask"].sum())
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert metrics == {"loss": pytest.approx(expected.item(), rel=1e-6)}
    counted = batch["token_mask"][:, 1:] * batch["sample_mask"][:, None] > 0
    assert current.grad.isfinite().all() and current.grad[counted].all() and not current.grad[~counted].any()


def test_an_advantage_that_prepare_has_made_reaches_the_loss():
    row = TrainRow([4], [5, 6], None, None, torch.ones(2), torch.ones(2).bool(), advantages=torch.tensor([0.5, 2.0]))
    batch = training_batch([row], pad_id=0, divisible_by=1, rows_multiple=1)
    seen = {}

    class Records:
        config = ObjectiveConfig()

        def __call__(self, logprobs, **columns):
            seen.update(columns)
            return logprobs.sum(), {}

    OwnLossFn(Records())(torch.zeros(1, 2), BatchedDataDict(batch), torch.ones(()), torch.tensor(2.0))
    assert seen["advantages"].tolist() == [[0.5, 2.0]] and seen["old_logprobs"] is None


def test_a_worker_that_has_no_such_file_gets_the_class(tmp_path):
    """A process of its own, which may not read the file, makes the same loss of what Ray would send it."""
    file = tmp_path / "mine.py"
    file.write_text(PARTS.read_text().replace("** 2 / 2", "** 2 / HALF") + "\n\nHALF = 2.0\n")
    loss_fn = OwnLossFn(build_objective(ObjectiveConfig(name=f"{file}:HalfSquaredGap")))
    batch = dict(training_batch(rows(), pad_id=0, divisible_by=4, rows_multiple=1))
    asked = (loss_fn, batch, torch.zeros(2, batch["input_ids"].shape[1] - 1))
    (tmp_path / "sent").write_bytes(ray.cloudpickle.dumps(asked))
    expected = loss_fn(asked[2], batch, torch.ones(()), torch.tensor(4.0))[0].item()
    file.unlink()
    read = (
        "import sys, torch; from ray import cloudpickle\n"
        "loss_fn, batch, current = cloudpickle.loads(open('sent', 'rb').read())\n"
        "print(loss_fn(current, batch, torch.ones(()), torch.tensor(4.0))[0].item())"
    )
    done = subprocess.run([sys.executable, "-c", read], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert float(done.stdout.split()[-1]) == expected > 0


def test_an_objective_that_fails_in_a_worker_names_the_line_of_the_user(tmp_path):
    """In a process without the file, and behind Ray's own long report."""
    file = tmp_path / "mine.py"
    file.write_text(PARTS.read_text().replace("** 2 / 2", "** 2 / {}['half']"))
    (line,) = (number for number, text in enumerate(file.read_text().splitlines(), 1) if "['half']" in text)
    loss_fn = OwnLossFn(build_objective(ObjectiveConfig(name=f"{file}:HalfSquaredGap")))
    batch = dict(training_batch(rows(), pad_id=0, divisible_by=4, rows_multiple=1))
    (tmp_path / "sent").write_bytes(ray.cloudpickle.dumps((loss_fn, batch)))
    file.unlink()
    read = (
        "import torch; from ray import cloudpickle; from ray.exceptions import RayTaskError\n"
        "loss_fn, batch = cloudpickle.loads(open('sent', 'rb').read())\n"
        "try: loss_fn(torch.zeros(2, 1), batch, torch.ones(()), torch.tensor(4.0))\n"
        "except Exception as error:\n"
        "    open('raised', 'wb').write(RayTaskError('train', 'a long report', error).to_bytes())"
    )
    subprocess.run([sys.executable, "-c", read], cwd=tmp_path, capture_output=True, text=True, check=True)
    came = RayError.from_bytes((tmp_path / "raised").read_bytes())
    with pytest.raises(UserError) as caught, cluster_errors():
        raise came.as_instanceof_cause()
    first, second, *_ = str(caught.value).splitlines()
    assert first.startswith(f"aopsd.objective.name={file}:HalfSquaredGap: {file}:{line}: KeyError: 'half'")
    assert second.startswith(f'  File "{file}", line {line}, in __call__') and "long report" not in str(caught.value)


def test_a_module_must_be_where_workers_look(overrides, tmp_path, monkeypatch):
    (tmp_path / "parts_here.py").write_text(PARTS.read_text())
    monkeypatch.syspath_prepend(tmp_path)
    named = [*overrides, "aopsd.objective.name=parts_here:HalfSquaredGap"]
    config = load_config(REPO / "examples/configs/aopsd_tiny_h100.yaml", named)
    monkeypatch.setenv("PYTHONPATH", "relative")
    with pytest.raises(UserError, match=r"aopsd\.objective\.name=parts_here:HalfSquaredGap: .*PYTHONPATH=nothing"):
        nemo_rl.check(config)
    monkeypatch.setenv("PYTHONPATH", f"relative:{tmp_path}")
    nemo_rl.check(config)
