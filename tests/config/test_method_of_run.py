"""Which method a run is: every config by its own name over any base, and what may be left out of the comparison."""

import re
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pytest
import torch

from nemo_aopsd.analysis.suite.spec import load_suite
from nemo_aopsd.config.keys import flatten
from nemo_aopsd.config.label import NOT_OF_THE_METHOD, describe_run, family_label, label_run, settings_read
from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.schema import (
    AOPSDConfig,
    ContextConfig,
    CurriculumConfig,
    ObjectiveConfig,
    ProbeConfig,
    TeacherConfig,
)
from nemo_aopsd.config.shipped import FOLDER, find_method, find_recipe, list_methods
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.step import train_step
from tests import REPO
from tests.fakes import make_config, make_engine, make_problem

METHODS = {method.name: method for method in list_methods()}
SAME = dict.fromkeys(("delta_2", "k_8", "betas_1_2.5"), "aopsd")  # the paper's sweeps meet in AOPSD's own settings
KEYS = flatten(asdict(AOPSDConfig())).keys()


@cache
def over(name, base="aopsd_tiny_cpu"):
    return load_config(REPO / f"examples/configs/{base}.yaml", ["aopsd.engine=local"], find_method(name)).aopsd


@pytest.mark.parametrize("name", METHODS)
def test_a_config_has_its_own_name_over_a_base(name):
    assert str(label_run(over(name))) == SAME.get(name, name)


@pytest.mark.parametrize("name", ["aopsd", "opsd", "delta_1", "teacher_ema", "shuffled"])
def test_a_config_has_the_same_name_over_a_base_of_the_cluster(name):
    assert str(label_run(over(name, "aopsd_qwen3_8b"))) == name


def test_a_base_config_that_sets_a_probe_s_threshold_makes_another_method_of_it():
    labels = {name: str(label_run(over(name, "wordproblems_smollm2"))) for name in ("aopsd", "opsd", "gap_only")}
    assert labels == {"aopsd": "delta_1", "opsd": "opsd", "gap_only": "gap_only + probes.threshold=1"}


OBJECTIVE = ObjectiveConfig(name="rkl")
PLAIN = {"weighting": "uniform", "curriculum": CurriculumConfig("shuffle"), "context": ContextConfig("solution")}


@pytest.mark.parametrize(
    ("aopsd", "name"),
    [
        (AOPSDConfig(), "aopsd"),
        (AOPSDConfig(probes=ProbeConfig(threshold=1.5)), "aopsd + probes.threshold=1.5"),
        (AOPSDConfig(probes=ProbeConfig(1.0, 16)), "delta_1 + probes.length=16"),
        (AOPSDConfig(teacher=TeacherConfig("ema", 0.99)), "teacher_ema + teacher.ema_decay=0.99"),
        (AOPSDConfig(teacher=TeacherConfig("frozen", 0.99)), "aopsd"),  # which a frozen teacher does not read
        (AOPSDConfig(max_num_steps=7, seed=5, num_prompts_per_step=4), "aopsd"),
        (AOPSDConfig(probes=ProbeConfig(keep_cache=True)), "aopsd"),
        (AOPSDConfig(keep_optimizer_on_gpu=True), "aopsd"),
        (AOPSDConfig(max_num_steps=0, mask_truncated=True), "base"),
        (AOPSDConfig(**PLAIN, objective=OBJECTIVE), "opsd + objective.name=rkl"),
        (AOPSDConfig(**PLAIN, objective=ObjectiveConfig(name="fkl")), "opsd_unclipped"),
        (AOPSDConfig(**PLAIN, objective=ObjectiveConfig(name="fkl", token_clip=1)), "opsd + objective.token_clip=1"),
        (AOPSDConfig(**PLAIN), "pg"),
        (AOPSDConfig(**PLAIN | {"context": ContextConfig("none")}), "no_reference"),
        (AOPSDConfig(probes=ProbeConfig(betas="auto", beta_positive=9)), "auto_betas"),  # whose numbers are not read
        (AOPSDConfig(weighting="gap_only", probes=ProbeConfig(score_anchor=True)), "gap_only"),
        (AOPSDConfig(curriculum=CurriculumConfig("shuffle")), "aopsd + curriculum.name=shuffle"),
    ],
)
def test_names_by_hand(aopsd, name):
    assert str(label_run(aopsd)) == name


def test_a_run_in_words():
    assert describe_run(over("delta_1")) == METHODS["delta_1"].title
    assert describe_run(AOPSDConfig(mask_truncated=True)) == "aopsd + mask_truncated=true"


def test_a_name_with_a_number_has_a_plain_one_with_its_unit():
    numbered = [method for method in METHODS.values() if re.search(r"_\d|\d$", method.name)]
    assert len(numbered) >= 11 and all(method.shown.endswith(f" ({method.name})") for method in numbered)
    units = {"delta": "nat", "k": "tokens", "betas": "nats"}
    assert all(units[kind] in method.shown for method in numbered if (kind := method.name.split("_")[0]) in units)
    suite = load_suite(find_recipe(Path("embedded"), FOLDER / "suites"), find_method)
    assert suite.labels["delta_3"] == "gap threshold 3 nats (delta_3)" and suite.labels["aopsd"] == "aopsd"
    assert {*suite.labels} == {member.name for member in suite.members}


@pytest.mark.parametrize(
    ("aopsd", "family"),
    [
        (AOPSDConfig(), "aopsd"),
        (AOPSDConfig(probes=ProbeConfig(threshold=1)), "aopsd + probes.threshold=1 (ablation delta_1)"),
        (
            AOPSDConfig(probes=ProbeConfig(threshold=1), curriculum=CurriculumConfig("shuffle")),
            "aopsd + curriculum.name=shuffle, probes.threshold=1",
        ),
        (AOPSDConfig(max_num_steps=0), "base"),
        (AOPSDConfig(**PLAIN | {"context": ContextConfig("none")}), "pg + context.kind=none (ablation no_reference)"),
    ],
)
def test_an_ablation_is_told_as_its_method_with_other_settings(aopsd, family):
    assert family_label(aopsd) == family


def test_the_suites_on_gsm8k_order_problems_by_competence_only_where_a_member_is_about_that():
    """The base config shuffles, and no method leaves the order to it."""
    base = load_config(REPO / "examples/configs/gsm8k.yaml", []).aopsd
    assert base.curriculum.name == "shuffle"
    assert all("aopsd.curriculum.name" in method.settings for method in METHODS.values())
    found = {}
    for name in ("gsm8k_sweep", "gsm8k_judged"):
        suite = load_suite(REPO / f"examples/suites/{name}.yaml", find_method)
        for member in suite.members:
            settings = [f"{key}={value}" for key, value in flatten(member.settings).items() if "curriculum.name" in key]
            found[member.name] = load_config(suite.config, settings, member.file).aopsd.curriculum.name
    assert {name for name, order in found.items() if order != "shuffle"} == {
        f"pi_curriculum_{rate}" for rate in ("1e-6", "3e-6", "1e-5")
    }


def test_every_choice_and_number_of_the_methods_is_compared():
    set_by_methods = {key.removeprefix("aopsd.") for method in METHODS.values() for key in method.settings}
    read = set().union(*(settings_read(over(name)) for name in METHODS))
    assert set_by_methods - read == {"max_num_steps"}  # 0 is the base, any other one a budget
    assert KEYS - read - {"objective.jsd_beta"} == {key for key in KEYS if key.startswith(NOT_OF_THE_METHOD)}


# What a run does not read, by a value that it could have instead.
OTHER = {
    **{"objective.advantage_clip": 0.01, "objective.ratio_clip_min": 0.01, "objective.ratio_clip_max": 0.01},
    **{"objective.token_clip": 1e-3, "objective.jsd_beta": 0.9, "objective.top_k": 3, "objective.top_k_form": "tail"},
    **{"objective.dash_kappa": 0.1, "objective.entropy_threshold": 3.0, "objective.entropy_weight": 9.0},
    **{"objective.on_policy_rate": 1.0, "objective.divergence": "rkl", "objective.whiten": True},
    **{"context.kind": "dag_full", "context.mark_frontier": False},
    **{"judge.model": "teacher", "judge.kind": "log_odds", "judge.threshold": -9.0},
    **{"probes.threshold": 0.1, "probes.length": 3, "probes.max_per_rollout": 1},
    **{"probes.beta_positive": 0.1, "probes.beta_negative": 0.1},
    # Not of a step: the order between epochs, and what the engine makes of its teacher.
    **{"curriculum.ema": 0.1, "teacher.weights": "live", "teacher.ema_decay": 0.1},
}


def learned(aopsd):
    """The student after one step, and what the step tells."""
    problems = [make_problem(index) for index in range(4)]
    engine = make_engine()
    donors = {problem.id: problems[index - 1] for index, problem in enumerate(problems)}
    objective = build_objective(aopsd.objective)
    result = train_step(problems, engine, objective, make_config(Path("run"), aopsd), donors=donors, seed=3)
    return engine.student.logits.detach(), result.train_metrics


def changed(aopsd, key, value):
    block, _, name = key.rpartition(".")
    return replace(aopsd, **({block: replace(getattr(aopsd, block), **{name: value})} if block else {name: value}))


SWEEPS = ("base", "delta_", "k_", "betas_")  # no step, and other numbers of aopsd


@pytest.mark.parametrize("name", [name for name in METHODS if not name.startswith(SWEEPS)])
def test_what_a_method_does_not_read_changes_nothing_that_it_learns(name):
    aopsd = replace(over(name), prompts="default")
    expected, metrics = learned(aopsd)
    for key in sorted(OTHER.keys() - settings_read(aopsd)):
        student, told = learned(changed(aopsd, key, OTHER[key]))
        assert torch.equal(student, expected) and told == metrics, key


def test_that_check_sees_what_is_read():
    aopsd = replace(over("aopsd"), prompts="default")
    expected, _ = learned(aopsd)
    for key in ("probes.threshold", "probes.beta_positive", "objective.advantage_clip"):
        assert key in settings_read(aopsd) and not torch.equal(learned(changed(aopsd, key, OTHER[key]))[0], expected)
