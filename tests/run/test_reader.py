"""What a run folder holds, read back: the same values, and a file, line and key for each damage."""

import json
import math
import re
from dataclasses import fields
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_aopsd.analysis.report import write_report
from nemo_aopsd.config.extension import check_own, sources
from nemo_aopsd.config.load import load_config
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.curriculum import build_curriculum
from nemo_aopsd.run import layout
from nemo_aopsd.run.reader import Run, load_run
from nemo_aopsd.run.record_types import Evaluation, Probe, Rollout
from tests import REPO
from tests.fake_run import stopped, write_run
from tests.fakes import make_config
from tests.run import read

# Runs of old lack them.
OPTIONAL = {"pieces", "anchor_text", "suffix_text", "leak_count", "truncation_count", "num_trained_on"}
NULLABLE = {"judge_failed", "judge_cut", "judge_text", "reached", "progress", "disclosed_share", "nll", *OPTIONAL}
NULLABLE |= {"teacher_prompt", "teacher_logprobs", "weights"}
READ = {  # by record, the fields that are read; epoch and step of an evaluation are elsewhere
    layout.METRICS: ["epoch", "step"],
    layout.COMPETENCE: ["epoch", "competence"],
    "rollouts/step_000001.jsonl": [field.name for kind in (Rollout, Probe) for field in fields(kind)],
    "eval/epoch_000.json": [field.name for field in fields(Evaluation) if field.name not in ("epoch", "step")],
}
CONFIG = make_config(Path("run"))  # these files are read without it
FILES = {
    layout.METRICS: lambda run: run.metrics,
    layout.COMPETENCE: lambda run: run.competence,
    "rollouts/step_000001.jsonl": lambda run: [rollout.gaps() for rollout in run.rollouts()],
    "eval/epoch_000.json": lambda run: run.evaluations,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("run") / "run"
    return write_run(place, num_epochs=1, steps_per_epoch=2, batch=2, num_held_out=2, num_samples=1)


def replaced(run, name, text):
    """The file with other content, until the end of the test."""
    (run / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    return FILES[name](Run(run, CONFIG))


@pytest.fixture
def kept(folder):
    contents = {name: (folder / name).read_bytes() for name in FILES}
    yield folder
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def test_a_run_is_read_as_it_was_written(folder):
    run = load_run(folder)
    lines = read(folder / layout.METRICS)
    assert [row.values for row in run.metrics] == lines
    assert [(row.epoch, row.step) for row in run.metrics] == [(0, 1), (0, 2)]
    assert run.metrics[1].number("time/step") == lines[1]["time/step"] and run.metrics[1].get("no/such") is None
    assert run.commands == ["aopsd train examples/demo.yaml aopsd.seed=0"]
    assert [entry.epoch for entry in run.competence] == [0, 1]
    assert [evaluation.epoch for evaluation in run.evaluations] == [0, 1]
    summary = json.loads((folder / "eval/epoch_001.json").read_text())
    assert run.evaluations[1].pass_at_k == {1: summary["pass_at_k"]["1"]}
    assert run.evaluations[1].correct_per_problem == summary["correct_per_problem"]
    rollouts = list(run.rollouts())
    raw, _ = read(folder / "rollouts/step_000002.jsonl")
    assert [rollout.step for rollout in rollouts] == [1, 1, 2, 2]
    assert [rollout.step for rollout in run.rollouts(2)] == [2, 2] == [r.step + 1 for r in run.rollouts(last_step=1)]
    assert rollouts[2].where == f"{folder}/rollouts/step_000002.jsonl:1"
    for name in ("problem_id", "response", "weights", "reached", "progress", "pieces", "teacher_logprobs"):
        assert getattr(rollouts[2], name) == raw[name]
    assert rollouts[2].gaps().tolist() == [
        q - p for q, p in zip(raw["teacher_logprobs"], raw["student_logprobs"], strict=True)
    ]


def test_a_number_that_a_run_does_not_have_is_told_with_the_nearest(folder):
    row = load_run(folder).metrics[0]
    with pytest.raises(UserError, match=r"metrics\.jsonl:1: `gap/mean`: .*`gap/mean_abs`\?"):
        row.number("gap/mean")


def test_a_run_shows_itself_in_a_line_even_if_it_is_damaged(kept):
    assert repr(load_run(kept)) == f"Run({kept}: 2 steps, 2 evaluations)"
    (kept / layout.METRICS).write_text("{\n")
    assert "1 steps" in repr(load_run(kept))


def test_the_page_on_reading_runs_runs(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mine").symlink_to(folder)
    blocks = re.findall(r"^```python\n(.*?)^```", (REPO / "docs/reading_runs.md").read_text(), re.MULTILINE | re.DOTALL)
    names: dict = {}
    for block in blocks:
        exec(block.replace("first_step=3, last_step=5", "first_step=1, last_step=2"), names)
    assert blocks and names["run"].commands
    assert len(capsys.readouterr().out.splitlines()) >= 2 + 2 + 2 + 4  # steps, epochs, evaluations, rollouts


def test_a_run_that_has_written_nothing_yet_is_empty(tmp_path):
    run = load_run(write_run(tmp_path / "run", num_epochs=0, evaluations=False, curriculum="shuffle"))
    assert (run.metrics, run.competence, run.evaluations, list(run.rollouts())) == ([], [], [], [])
    with pytest.raises(UserError, match="gone"):
        load_run(tmp_path / "gone")
    (tmp_path / "bare").mkdir()
    with pytest.raises(UserError, match=r"config\.yaml"):
        load_run(tmp_path / "bare")


def test_a_line_that_a_kill_cut_short_is_left_out_and_a_diverged_run_is_read(kept):
    text = (kept / layout.METRICS).read_text()
    assert len(replaced(kept, layout.METRICS, text + '{"epoch": 0, "st')) == 2
    line = json.dumps(json.loads(text.splitlines()[0]) | {"train/loss": math.nan, "reward/mean": None})
    [row] = replaced(kept, layout.METRICS, line + "\n")
    assert math.isnan(row.get("train/loss")) and row.get("reward/mean") is None
    with pytest.raises(UserError, match=r"metrics\.jsonl:1: `reward/mean`"):
        row.number("reward/mean")


@pytest.mark.parametrize(
    ("order", "told"), [([1], ":1: expected step 1, got 2:"), ([0, 0, 1], ":2: expected step 2, got 1")]
)
def test_steps_without_their_line_are_damage(kept, order, told):
    lines = (kept / layout.METRICS).read_text().splitlines(keepends=True)
    with pytest.raises(UserError, match=re.escape(f"{layout.METRICS}{told}")):
        replaced(kept, layout.METRICS, "".join(lines[index] for index in order))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", ["{\n{}\n", "[1]\n", "[" * 100_000 + "\n", "{}\n", "\udcff\n"])
def test_a_damaged_file_is_named(kept, name, content):
    with pytest.raises(UserError) as caught:
        replaced(kept, name, content)
    line = "" if name.endswith(".json") else ":1"
    assert str(caught.value).startswith(f"{kept / name}{line}: ")


@pytest.mark.parametrize("name", FILES)
def test_each_field_may_be_lost_or_wrong_and_is_named(kept, name):
    record = json.loads((kept / name).read_text().partition("\n")[0])
    for field in set(READ[name]) - {"where"}:
        holder = record if field in record else record["probes"][0]
        value = holder.pop(field)
        for change, allowed in (({}, OPTIONAL), ({field: None}, NULLABLE), ({field: {"x": "y"}}, set())):
            holder |= change
            try:
                replaced(kept, name, json.dumps(record) + "\n")
                assert field in allowed
            except UserError as error:
                assert field not in allowed
                assert name in str(error) and f"{field}" in str(error)
        holder[field] = value


PROBE = {"position": 999, "gap": 1, "anchor": 1, "suffix": [], "nll": None, "weight": 1}
CONTRADICTIONS = {  # by file, changes and the key that is named
    "rollouts/step_000001.jsonl": [
        ({"teacher_logprobs": [-1.0]}, "teacher_logprobs"),
        ({"pieces": []}, "pieces"),
        ({"student_logprobs": None}, "student_logprobs"),
        ({"probes": [PROBE]}, "probes"),
    ],
    "eval/epoch_000.json": [
        ({"num_problems": 3}, "num_problems"),
        ({"num_samples": 0}, "num_samples"),
        ({"correct_per_problem": {"a": 0, "b": 2}}, "correct_per_problem"),
        ({"correct_per_problem": {}}, "correct_per_problem"),
        ({"pass_at_k": {}}, "pass_at_k"),
        ({"pass_at_k_interval": {}}, "pass_at_k_interval"),
    ],
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_record_that_contradicts_itself_or_has_infinite_gaps_is_named(kept, name):
    record = json.loads((kept / name).read_text().partition("\n")[0])
    changes = list(CONTRADICTIONS[name])
    if "rollouts" in name:
        changes.append(({"teacher_logprobs": [math.inf, *record["teacher_logprobs"][1:]]}, "teacher_logprobs"))
    for change, key in changes:
        with pytest.raises(UserError, match=rf"{Path(name).name}.*: .*`{key}`"):
            replaced(kept, name, json.dumps(record | change) + "\n")


def test_an_evaluation_has_the_step_that_it_came_after(tmp_path):
    """Of a run that ended within its second epoch: 3 steps and 1."""
    path = write_run(tmp_path / "run", num_epochs=2, steps_per_epoch=3, batch=2, num_held_out=2, num_samples=1)
    metrics = path / layout.METRICS
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:4]))
    assert [(one.epoch, one.step) for one in load_run(path).evaluations] == [(0, 0), (1, 3), (2, 4)]
    metrics.unlink()
    with pytest.raises(UserError, match=r"metrics\.jsonl.*epoch_001\.json"):
        _ = load_run(path).evaluations


STOPPED = [  # steps, epochs, evaluations that are there; what is said
    (12, 3, 4, ""),
    (9, 2, 3, "a is unfinished (9 of 12 steps); compared at its step 8"),
    (2, 0, 1, "a is unfinished (2 of 12 steps); its only evaluation is from before training"),
    (0, 0, 1, "a is unfinished (0 of 12 steps); its only evaluation is from before training"),
    (12, 3, 3, "a has no evaluation of its end (12 of 12 steps); compared at its step 8"),
]


@pytest.mark.parametrize(("steps", "epochs", "evaluations", "said"), STOPPED)
def test_a_run_that_is_compared_before_its_end_says_so(tmp_path, steps, epochs, evaluations, said):
    run = load_run(stopped(tmp_path / "run", steps, epochs, evaluations))
    assert run.caution(run.evaluations[-1].step, "a") == said and run.is_finished == (steps == 12)


@pytest.mark.parametrize(
    ("limit", "finished", "done"),
    [
        ("max_num_steps: 9", True, "9 of 9 steps"),
        ("max_num_steps: 10", False, "9 of 10 steps"),
        ("max_num_steps: 99", False, "9 of 12 steps"),
        ("max_train_seconds: 1", True, "9 steps"),
        ("max_train_seconds: 1.0e+6", False, "9 steps"),
        ("max_response_tokens: 100", False, "9 steps"),  # these metrics do not count them
    ],
)
def test_any_limit_ends_a_run(tmp_path, limit, finished, done):
    path = stopped(tmp_path / "run", 9, 2, 3)
    config = path / layout.CONFIG
    config.write_text(config.read_text().replace("  max_num_epochs: 3\n", f"  max_num_epochs: 3\n  {limit}\n"))
    run = load_run(path)
    assert (run.is_finished, run.steps_done) == (finished, done)


OWN = {  # what the config names, by key: a file of each, or a module
    "aopsd.weighting": ("RisingWeights", "mine.py"),
    "aopsd.context.kind": ("FirstCheckpoint", "mine.py"),
    "aopsd.judge.kind": ("NumberJudge", "mine.py"),
    "aopsd.curriculum.name": ("SortedOrder", "parts_gone"),
    "aopsd.objective.name": ("HalfSquaredGap", "mine.py"),
}


@pytest.fixture
def moved(tmp_path):
    """A run whose config names a class of the user's own of each kind, none of which is where it was."""
    run = write_run(tmp_path / "run", num_epochs=1, steps_per_epoch=2, batch=2, num_held_out=2, num_samples=1)
    config = OmegaConf.load(run / "config.yaml")
    for key, (name, place) in OWN.items():
        OmegaConf.update(config, key, f"{tmp_path / place if place.endswith('.py') else place}:{name}")
    OmegaConf.save(config, run / "config.yaml")
    return run


@pytest.mark.parametrize("has_copies", [True, False])
def test_a_run_is_read_without_the_classes_of_ones_own(moved, has_copies, capsys):
    if has_copies:
        (moved / "extensions").mkdir()
        for name in ("mine.py", "parts_gone.py"):
            (moved / "extensions" / name).write_text((REPO / "examples/my_parts.py").read_text())
    for _ in range(2):
        aopsd = load_run(moved).config.aopsd
    write_report(moved)
    said, page = capsys.readouterr().err, (moved / "report.html").read_text()
    assert aopsd.weighting == f"{moved.parent}/mine.py:RisingWeights" and aopsd.objective.own_signal.sampled
    assert ("The teacher is followed more towards the end" in page) == aopsd.needs_progress == has_copies
    assert [said.count(f":{name}: ") for name, _ in OWN.values()] == [0 if has_copies else 1] * len(OWN)
    assert not list(moved.rglob("__pycache__"))


def test_a_class_that_was_read_without_being_there_makes_nothing(moved):
    """Training and resume of the same process are as strict as ever; and so is what does call the class."""
    aopsd = load_run(moved).config.aopsd
    (moved / "extensions").mkdir()
    (moved / "extensions/mine.py").write_text((REPO / "examples/my_parts.py").read_text())
    for refused in (lambda: check_own(aopsd), lambda: sources(aopsd)):
        with pytest.raises(UserError, match=r"aopsd\.weighting=.*: no file "):
            refused()
    with pytest.raises(UserError, match=r"aopsd\.curriculum\.name=parts_gone:SortedOrder: there is no module"):
        build_curriculum(["a"], aopsd.curriculum, 1, 0).batches()
    with pytest.raises(UserError, match=r"aopsd\.weighting=.*: no file "):
        load_config(moved / "config.yaml")
