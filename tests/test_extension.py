"""Parts of a user's own: found by file or module, refused in words, and used by a step as ours are."""

import hashlib
import random
import re
import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from nemo_aopsd import prompts
from nemo_aopsd.config import extension
from nemo_aopsd.config.checks import check_block, check_run
from nemo_aopsd.config.extension import check_own, made, own_class, sources
from nemo_aopsd.config.schema import AOPSDConfig, ContextConfig, CurriculumConfig, JudgeConfig, ObjectiveConfig
from nemo_aopsd.config.unread import idle_keys
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_journal
from nemo_aopsd.manifest import Manifest
from nemo_aopsd.method.context import check_problems, disclose
from nemo_aopsd.method.curriculum import build_curriculum
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.probes import Probe
from nemo_aopsd.method.step import train_step
from nemo_aopsd.run.own_files import check_extensions, keep_extensions
from nemo_aopsd.run.rehearsal import rehearse
from tests import REPO
from tests.fakes import make_config, make_engine, make_problem

PARTS = Path(__file__).parents[1] / "examples/my_parts.py"
PROBLEMS = [make_problem(index) for index in range(4)]
WORDS = [("words/student.txt", "prompts/student.txt", "prompts")]
KINDS = {
    "weighting": ("RisingWeights", lambda name: {"weighting": name}),
    "context.kind": ("FirstCheckpoint", lambda name: {"context": ContextConfig(kind=name)}),
    "judge.kind": ("NumberJudge", lambda name: {"judge": JudgeConfig(kind=name)}),
    "curriculum.name": ("SortedOrder", lambda name: {"curriculum": CurriculumConfig(name=name)}),
    "objective.name": ("HalfSquaredGap", lambda name: {"objective": ObjectiveConfig(name=name)}),
}


def block(*keys: str, **changes) -> AOPSDConfig:
    """A config that names the example of each of `keys`."""
    parts = {}
    for key in keys:
        name, make = KINDS[key]
        parts |= make(f"{PARTS}:{name}")
    return AOPSDConfig(**(parts | changes))


def step(aopsd, engine=None):
    engine = engine or make_engine()
    config = make_config(Path("unused"), aopsd)
    return train_step(PROBLEMS, engine, build_objective(aopsd.objective), config, donors={}, seed=0), engine


@pytest.mark.parametrize("key", KINDS)
def test_a_class_in_a_file_stands_where_a_name_of_ours_does(key):
    block_name, _, leaf = key.rpartition(".")
    value = {leaf: f"{PARTS}:{KINDS[key][0]}"}
    aopsd, faults = check_block({"aopsd": {block_name: value} if block_name else value})
    assert not faults and aopsd is not None and sources(aopsd) == {key: PARTS}


def test_weights_of_ones_own_reach_the_update_and_the_probes():
    result, engine = step(block("weighting"))
    for scored, row in zip(result.scored, engine.trained[0], strict=True):
        length = len(row.response)
        assert row.weights.tolist() == pytest.approx([(t + 1) / length for t in range(length)])
        assert not scored.probes
    probed = AOPSDConfig(weighting=f"{PARTS}:UnsurprisingOnly", probes=replace(AOPSDConfig().probes, threshold=1.0))
    result, _ = step(probed)
    found = [(probe, row.weights[probe.position]) for row in result.scored for probe in row.probes]
    assert {weight.item() for _, weight in found} == {0.0, 1.0}
    assert all(probe.weight == weight == float(probe.nll is not None and probe.nll < 1) for probe, weight in found)


def test_a_context_and_a_judge_of_ones_own_decide_what_the_teacher_reads():
    result, engine = step(block("context.kind", "judge.kind"))
    for draft in result.drafts:
        text = engine.tokenizer.decode(draft.teacher_prompt)
        ahead = [data["statement"] for node, data in draft.problem.graph.nodes(data=True) if node not in draft.reached]
        assert text.strip() == f"{draft.problem.problem}\n\nA step of a correct solution: {ahead[0]}"
    assert all(draft.verdict is not None and not draft.verdict.failed for draft in result.drafts)


def test_a_context_needs_the_field_that_it_names():
    kind = f"{PARTS}:FirstCheckpoint"
    with pytest.raises(UserError, match=r"has no `dag`, which aopsd\.context\.kind="):
        check_problems([replace(PROBLEMS[0], dag=None)], kind, f"{PARTS}:SortedOrder")
    check_problems(PROBLEMS, kind, f"{PARTS}:SortedOrder")


def test_a_context_may_not_name_a_field_that_no_problem_has(tmp_path):
    (tmp_path / "mine.py").write_text("class Mine:\n    field, adaptive, messages = 'solutions', False, None\n")
    with pytest.raises(UserError, match=r"`field` is 'solutions'; expected solution, .* or None\. .*`solution`\?$"):
        check_problems(PROBLEMS, f"{tmp_path}/mine.py:Mine", "shuffle")


def test_a_curriculum_of_ones_own_asks_no_judge_where_it_needs_none():
    aopsd = block("curriculum.name", context=ContextConfig(kind="solution"))
    assert not aopsd.needs_progress and block("context.kind").needs_progress
    made = own_class("curriculum.name", aopsd.curriculum.name)(["b", "a", "c"], aopsd.curriculum, 2, 0)
    assert made.batches() == [["a", "b"], ["c"]]


def test_an_objective_of_ones_own_has_the_gradient_that_it_claims():
    generator = torch.Generator().manual_seed(0)
    old, teacher, weights = torch.rand(3, 2, 5, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    gradients = []
    for name in (f"{PARTS}:HalfSquaredGap", "pg"):
        now = old.clone().requires_grad_(True)
        columns = {"old_logprobs": old, "teacher_logprobs": teacher, "weights": weights, "mask": mask}
        loss, _ = build_objective(ObjectiveConfig(name=name))(
            now, divergence=None, entropy=None, advantages=None, num_tokens=8.0, num_rows=2.0, **columns
        )
        gradients.append(torch.autograd.grad(loss, now)[0])
    torch.testing.assert_close(*gradients)
    result, _ = step(block("objective.name"))
    assert result.train_metrics["train/loss"] > 0


def test_an_objective_of_ones_own_may_read_the_reward_of_one_answer_a_problem(tmp_path, monkeypatch):
    text = (
        "from nemo_aopsd.method.objectives.pg import PolicyGradient\n"
        "class Mine(PolicyGradient):\n    needs_reward = True\n"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewarded.py").write_text(text)
    aopsd = AOPSDConfig(objective=ObjectiveConfig(name="rewarded.py:Mine"), weighting="uniform")
    for answers in (1, 2):
        _, engine = step(replace(aopsd, num_generations_per_prompt=answers))
        [rows] = engine.trained
        assert [row.reward for row in rows] == [0.0] * 4 * answers
        assert all((row.advantages is None) == (answers == 1) for row in rows)


def test_keys_that_only_ours_read_are_still_told():
    idle = idle_keys(block("weighting", "objective.name"))
    assert "probes.length" in idle and "objective.advantage_clip" not in idle and "probes.max_weight" not in idle


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no/file.py:A", ("no file", "no/file.py")),
        ("no_module_xyz:A", ("no_module_xyz", "PYTHONPATH")),
        (f"{PARTS}:RisingWeight", ("no class `RisingWeight`", "`RisingWeights`")),
        (f"{PARTS}:NumberJudge", ("`continues`", "`weigh`")),
        ("broken.py:A", ("broken.py", "ZeroDivisionError")),
    ],
)
def test_what_cannot_be_used_is_told(text, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(extension, "_copies", {})  # of runs that other tests have read
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(UserError) as caught:
        own_class("weighting", text)
    assert all(part in str(caught.value) for part in (f"aopsd.weighting={text}", *told))


def test_a_wrong_name_is_told_that_a_class_would_do():
    _, [(key, message)] = check_block({"aopsd": {"weighting": "unifrom"}})
    assert key == "aopsd.weighting" and "uniform, continuation" in message and "or FILE.py:CLASS" in message


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("[gap / 0 for gap in gaps]", "rollout 0 is not finite"),
        ("[gap[1:] for gap in gaps]", "got shape"),
        ("[0.5 for gap in gaps]", "got float for the"),
        ("gaps[1:]", "got 3 for 4 rollouts"),
    ],
)
def test_weights_that_do_not_fit_end_the_step(tmp_path, monkeypatch, returned, told):
    monkeypatch.chdir(tmp_path)
    name = f"{told.replace(' ', '_')}.py"
    head = "class Mine:\n    continues = False\n    def __init__(self, aopsd): pass\n"
    text = f"{head}    def weigh(self, gaps, probes): return {returned}"
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=told) as caught:
        step(AOPSDConfig(weighting=f"{name}:Mine"))
    assert f"aopsd.weighting={name}:Mine" in str(caught.value)


CLASS = "class Mine:\n    continues, field, adaptive = True, 'dag', True\n    "
HEADS = {
    "weighting": f"{CLASS}def __init__(self, aopsd): pass\n    def weigh(self, gaps, probes): ",
    "context.kind": f"{CLASS}def messages(self, problem, reached, prompts): ",
    "curriculum.name": "import nemo_aopsd.method.curriculum as c\nclass Mine(c.Curriculum):\n  def batches(self): ",
}


@pytest.mark.parametrize(
    ("key", "body", "told"),
    [
        ("weighting", "return [gap[1:] for gap in gaps]", r"got shape \[4\] for the 5 gaps of rollout 0"),
        ("weighting", "return [gap * (1 / len(found)) for gap, found in zip(gaps, probes)]", r"part\d\.py:4: ZeroDiv"),
        ("weighting", "return None", "got NoneType for 2 rollouts"),
        ("context.kind", "return problem.problem", "`messages` must give chat messages"),
        ("context.kind", "return [{'role': 'user', 'content': None}]", "'p000' it gave"),
        ("context.kind", "return [{'role': 'teacher', 'content': ''}]", "as `role` system or user or assistant; for"),
        ("context.kind", "return [{'role': 'user', 'content': min({*'abcd'} - reached)}]", r"part\d\.py:3: ValueError"),
        ("curriculum.name", "return [['p9']]", "no problem has the id 'p9'"),
        ("curriculum.name", "return list(self.competence)", r"got \['p000'"),
        ("curriculum.name", "self.seen = 1 / self.epoch", r"part\d\.py:3: ZeroDiv"),
    ],
)
def test_a_part_of_ones_own_is_tried_before_a_model_is_loaded(tmp_path, key, body, told, request):
    index = request.node.callspec.indices["key"]
    (tmp_path / f"part{index}.py").write_text(HEADS[key] + body + "\n")
    with pytest.raises(UserError, match=told) as caught:
        rehearse(AOPSDConfig(**KINDS[key][1](f"{tmp_path}/part{index}.py:Mine")), PROBLEMS)
    assert str(caught.value).startswith(f"aopsd.{key}={tmp_path}/part{index}.py:Mine: ")


FAILS = "return {}['it']"
BODIES = {  # key: what stands above line 5, where it fails
    "weighting": "    continues = False\n    def __init__(self, aopsd): pass\n    def weigh(self, gaps, probes):",
    "context.kind": "    field = None\n    adaptive = False\n    def messages(self, problem, reached, prompts):",
    "judge.kind": "    x = 1\n    def __init__(self, aopsd): pass\n    def judge(self, problems, *_):",
    "objective.name": "    signal = nemo_aopsd.types.Signal(True)\n    needs_old_logprobs = True\n"
    "    def __call__(self, logprobs, **_unread):",
    "curriculum.name": "    y = 1\n    x = 1\n    def batches(self):",
}
BASES = {"objective.name": "method.objectives.base.BaseObjective", "curriculum.name": "method.curriculum.Curriculum"}


def failing(folder, key, body=FAILS):
    """A file whose class of this kind does `body` in line 5, and the `aopsd` block that names it."""
    base = f"nemo_aopsd.{BASES[key]}" if key in BASES else "object"
    module = base.rpartition(".")[0] or "json"
    file = folder / f"failing_{key.partition('.')[0]}.py"
    file.write_text(f"import {module}; class_ = {base}\nclass Mine({base}):\n{BODIES[key]}\n        {body}\n")
    return file, AOPSDConfig(**KINDS[key][1](f"{file}:Mine"))


@pytest.mark.parametrize("key", KINDS)
def test_a_call_that_fails_names_the_line_of_the_user(tmp_path, key):
    file, aopsd = failing(tmp_path, key)
    with pytest.raises(UserError) as caught:
        build_curriculum(["a"], aopsd.curriculum, 1, 0).batches() if key == "curriculum.name" else step(aopsd)
    first, *below = str(caught.value).splitlines()
    assert first.startswith(f"aopsd.{key}={file}:Mine: {file}:6: KeyError: 'it'")
    assert below[0].startswith(f'  File "{file}", line 6, in ') and below[-1] == "KeyError: 'it'"
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("key", "body", "told"),
    [
        ("judge.kind", "return []", "got 0 for 4 responses"),
        ("judge.kind", "return 1", "got int for 4 responses"),
        ("judge.kind", "return [{'z'}] * 4", "'p000'; got {'z'}"),
        ("judge.kind", "return ['a'] * 4", "'p000'; got 'a'"),
        ("objective.name", "return 1", "loss and metrics; got 1"),
        ("objective.name", "return 1.0, {}", "the loss as a tensor of one number; got float"),
        ("objective.name", "return logprobs, {}", "the loss as a tensor of one number; got shape [1, 2]"),
        ("objective.name", "return logprobs.sum().detach(), {}", "with gradient in the log-probs; got one without"),
        ("objective.name", "return logprobs.sum() * float('nan'), {}", "a finite loss; got nan at this step"),
        (
            "objective.name",
            "return logprobs.sum(), {'a': logprobs}",
            "each metric as one number or a tensor of one; got shape [1, 2] for 'a'",
        ),
    ],
)
def test_what_a_judge_or_an_objective_may_not_give_is_told(tmp_path, key, body, told):
    file, aopsd = failing(tmp_path, key, body)
    with pytest.raises(UserError) as caught:
        step(aopsd)
    assert str(caught.value).startswith(f"aopsd.{key}={file}:Mine: ") and told in str(caught.value)


def test_a_loss_that_is_only_read_needs_no_gradient(tmp_path):
    _, aopsd = failing(tmp_path, "objective.name", "return logprobs.sum(), {}")
    objective = made("objective.name", aopsd.objective.name, aopsd.objective)
    assert objective(torch.ones(1, 2))[0] == 2
    assert objective(torch.full((1, 2), torch.nan))[0].isnan()  # no fault of the class


def test_an_objective_on_sampled_tokens_needs_the_student_s_log_probs(tmp_path):
    file, _ = failing(tmp_path, "objective.name")
    file.write_text(file.read_text().replace("needs_old_logprobs = True", "x = 1"))
    tree = {
        "policy": {"model_name": "m", "max_total_sequence_length": 4096, "generation": {"max_new_tokens": 2048}},
        "data": {"train": {"data_path": "x"}},
        "logger": {"log_dir": "run"},
        "aopsd": {"objective": {"name": f"{file}:Mine"}},
    }
    [(key, message)] = check_run(tree)[1]
    assert key == "aopsd.objective.name" and "needs_old_logprobs = True" in message


def test_a_method_that_takes_other_arguments_is_named(tmp_path):
    file, aopsd = failing(tmp_path, "judge.kind")
    file.write_text(file.read_text().replace("problems, *_", "problems"))
    with pytest.raises(UserError) as caught:
        step(aopsd)
    assert str(caught.value).startswith(f"aopsd.judge.kind={file}:Mine: TypeError: Mine.judge() takes 2 positional ")


def test_a_module_that_cannot_be_imported_names_its_line(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    text = "import json\n\nimport no_such_library\n"
    for name, place in (("lacks_one", "lacks_one"), ("lacks_too", f"{tmp_path}/lacks_too.py")):
        (tmp_path / f"{name}.py").write_text(text)
        with pytest.raises(UserError) as caught:
            own_class("judge.kind", f"{place}:Mine")
        assert f"{tmp_path}/{name}.py:3: ModuleNotFoundError: No module named 'no_such_lib" in str(caught.value)


def test_a_file_that_imports_one_beside_it_is_told_to_put_the_folder_on_the_path(tmp_path, monkeypatch):
    (tmp_path / "helper_of_mine.py").write_text("x = 1\n")
    (tmp_path / "asks.py").write_text("import helper_of_mine\nclass Mine:\n    judge = None\n")
    with pytest.raises(UserError, match=rf"asks\.py:1: ModuleNotFoundError: .* PYTHONPATH={tmp_path}\n") as caught:
        own_class("judge.kind", f"{tmp_path}/asks.py:Mine")
    assert "says what it is given" not in str(caught.value)
    monkeypatch.syspath_prepend(tmp_path)
    assert own_class("judge.kind", f"{tmp_path}/asks.py:Mine").judge is None


def test_the_trial_leaves_no_trace_in_the_objects_of_the_run(tmp_path):
    text = "class Mine:\n    continues = False\n    calls = 0\n    def __init__(self, aopsd): pass\n"
    (tmp_path / "counts.py").write_text(
        f"{text}    def weigh(self, gaps, probes):\n        self.calls += 1\n        return gaps\n"
    )
    aopsd = AOPSDConfig(weighting=f"{tmp_path}/counts.py:Mine")
    rehearse(aopsd, PROBLEMS)
    assert made("weighting", aopsd.weighting, aopsd).calls == 0
    rehearse(block("weighting", "context.kind", "curriculum.name"), PROBLEMS)


def test_an_object_is_made_once_and_before_a_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "class Mine:\n    continues = False\n    weigh = None\n    def __init__(self{}): self.made = 1 / {}\n"
    (tmp_path / "good.py").write_text(text.format(", aopsd", 1))
    aopsd = AOPSDConfig(weighting="good.py:Mine")
    check_own(aopsd)
    assert made("weighting", aopsd.weighting, aopsd) is made("weighting", aopsd.weighting, replace(aopsd))
    for number, (arguments, divisor, error) in enumerate([("", 1, "TypeError"), (", aopsd", 0, "ZeroDivisionError")]):
        (tmp_path / f"bad{number}.py").write_text(text.format(arguments, divisor))
        with pytest.raises(UserError, match=rf"aopsd\.weighting=bad{number}\.py:Mine: .*{error}"):
            check_own(AOPSDConfig(weighting=f"bad{number}.py:Mine"))


def test_a_module_on_the_path_is_found(tmp_path, monkeypatch):
    (tmp_path / "parts_of_mine.py").write_text(PARTS.read_text())
    monkeypatch.syspath_prepend(tmp_path)
    assert own_class("judge.kind", "parts_of_mine:NumberJudge") is sys.modules["parts_of_mine"].NumberJudge


@pytest.fixture
def of_mine(tmp_path, monkeypatch):
    """A config of a file and a folder of prompts of the user's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PARTS.read_text())
    shutil.copytree(Path(prompts.__file__).with_name("tiny"), tmp_path / "words")
    return AOPSDConfig(weighting="mine.py:RisingWeights", prompts="words")


@pytest.mark.parametrize(("file", "kept", "key"), [("mine.py", "mine.py", "weighting"), *WORDS])
def test_a_run_keeps_files_of_ones_own_and_refuses_another_version(tmp_path, of_mine, file, kept, key):
    for _ in range(2):
        check_extensions(tmp_path / "run", of_mine)
        keep_extensions(tmp_path / "run", of_mine)
    content = (tmp_path / file).read_bytes()
    kept = f"extensions/{kept}"
    assert (tmp_path / "run" / kept).read_bytes() == content
    found = {line["file"]: line["sha256"] for line in read_journal(tmp_path / "run/manifest.jsonl", "file", "sha256")}
    assert found[kept] == hashlib.sha256(content).hexdigest()
    (tmp_path / file).write_bytes(content + b"\n")
    (tmp_path / "run/metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(UserError, match=rf"{file}: has changed .*aopsd\.{key}"):
        check_extensions(tmp_path / "run", of_mine)


@pytest.mark.parametrize(("file", "kept", "key"), [("mine.py", "mine.py", "weighting"), *WORDS])
def test_a_file_that_nothing_was_made_with_may_change(tmp_path, of_mine, file, kept, key, capsys):
    """An evaluation before the first step depends on the prompts, but not on the weighting."""
    run = tmp_path / "run"
    keep_extensions(run, of_mine)
    content = (tmp_path / file).read_bytes() + b"\n"
    (tmp_path / file).write_bytes(content)
    check_extensions(run, of_mine)
    keep_extensions(run, of_mine)
    assert (run / "extensions" / kept).read_bytes() == content and not Manifest(run).check([])
    assert f"{file}: has changed since the run began" in capsys.readouterr().err
    (run / "eval").mkdir()
    (tmp_path / file).write_bytes(content + b"\n")
    if key == "weighting":
        check_extensions(run, of_mine)
    else:
        with pytest.raises(UserError, match="has changed since"):
            check_extensions(run, of_mine)


def test_two_files_of_one_name_are_not_mixed_up(tmp_path, of_mine):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine.py").write_text(PARTS.read_text().replace("RisingWeights", "NumberJudge_"))
    two = replace(of_mine, judge=JudgeConfig(kind="other/mine.py:NumberJudge"))
    assert own_class("judge.kind", two.judge.kind).__module__ != own_class("weighting", two.weighting).__module__
    with pytest.raises(UserError, match=r"aopsd\.judge\.kind: .*other/mine\.py and .*mine\.py have the same name"):
        check_extensions(tmp_path / "run", two)


def test_one_name_is_another_file_in_another_folder(tmp_path, monkeypatch):
    """In one process, as the members of a suite or a notebook have it."""
    name, found = "same.py:Mine", []
    for number, folder in enumerate((tmp_path / "one", tmp_path / "two")):
        folder.mkdir()
        head = "class Mine:\n    continues = False\n    weigh = None\n    def __init__(self, aopsd): pass\n"
        (folder / "same.py").write_text(f"{head}    number = {number}\n")
        (folder / "words").mkdir()
        (folder / "words/student.txt").write_text(f"{number}\n")
        monkeypatch.chdir(folder)
        part = made("weighting", name, AOPSDConfig())
        found.append((own_class("weighting", name).number, part.number, prompts.read("words", "student")))
        assert sources(AOPSDConfig(weighting=name)) == {"weighting": folder / "same.py"}
    assert found == [(0, 0, "0"), (1, 1, "1")]


def test_a_file_may_have_the_name_of_a_module_of_python_and_dataclasses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Mine:\n    x: int\n"
    )
    (tmp_path / "random.py").write_text(text + "    continues = False\n    weigh = None\n")
    found = own_class("weighting", "random.py:Mine")
    assert found(1).x == 1 and sys.modules[found.__module__].Mine is found and random is sys.modules["random"]


def test_what_an_objective_reads_is_asked_of_the_object(tmp_path, monkeypatch):
    """It may depend on the block: a class as `EntropyAware` says so when it is made."""
    text = (
        "from nemo_aopsd.method.objectives.base import BaseObjective\nfrom nemo_aopsd.types import Signal\n"
        "class Mine(BaseObjective):\n    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.signal = Signal(sampled=True, top_k=config.top_k)\n    def __call__(self): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "late.py").write_text(text)
    block = ObjectiveConfig(name="late.py:Mine")
    assert block.reads_teacher and block.weighs_gaps and block.own_signal.top_k == 16


@pytest.mark.parametrize(
    ("name", "more", "faults"),
    [
        ("HalfSquaredGap", {}, []),
        ("HalfSquaredGap", {"scoring": "prefill"}, ["aopsd.scoring"]),
        ("ForwardKL", {}, ["aopsd.objective.name"]),
        ("TopKForwardKL", {}, ["aopsd.objective.name"]),
    ],
)
def test_on_nemo_rl_an_objective_of_ones_own_reads_sampled_tokens(tmp_path, name, more, faults):
    (tmp_path / "losses.py").write_text("from nemo_aopsd.method.objectives.fkl import ForwardKL, TopKForwardKL\n")
    file = PARTS if name == "HalfSquaredGap" else tmp_path / "losses.py"
    weights = {} if name == "HalfSquaredGap" else {"weighting": "uniform"}
    aopsd = {"engine": "nemo_rl", "objective": {"name": f"{file}:{name}"}, **weights, **more}
    tree = {
        "policy": {"model_name": "m", "max_total_sequence_length": 4096, "generation": {"max_new_tokens": 2048}},
        "data": {"train": {"data_path": "x"}},
        "logger": {"log_dir": "run"},
        "aopsd": aopsd,
    }
    assert [key for key, _ in check_run(tree)[1]] == faults


def test_the_page_s_context_shows_the_frontier_in_our_wording_and_its_table_has_every_field_of_a_probe():
    page = (REPO / "docs/extending.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec(block, names)
    problem = make_problem(0)
    [message] = names["FrontierAlone"]().messages(problem, frozenset(), "default")
    ours = disclose(problem, frozenset())
    assert message["content"] == prompts.fill("default", "teacher_dag_marked", problem=problem.problem, context=ours)
    table = page.partition("`Probe`")[2].partition("\n\nA context")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [each.name for each in fields(Probe)]
