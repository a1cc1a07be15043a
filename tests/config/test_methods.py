"""The configs of methods and ablations: each is a point of four axes, over any base, and takes a step."""

import json
import re
import shutil
from functools import cache

import pytest
from rich.console import Console
from typer.testing import CliRunner

from nemo_aopsd.cli.app import app
from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.shipped import FOLDER, find_method, list_methods
from nemo_aopsd.errors import UserError
from nemo_aopsd.run.preflight import check_inputs
from tests import REPO

METHODS = {method.name: method for method in list_methods()}
TINY, LARGE = FOLDER / "demo.yaml", REPO / "examples/configs/aopsd_qwen3_8b.yaml"
DOCS = REPO / "docs/methods.md"

# Objective, context, weighting, curriculum of each method: typed from the paper's list of baselines.
POINTS = {
    "sft": ("sft", "none", "uniform", "shuffle"),
    "grpo": ("grpo", "none", "uniform", "shuffle"),
    "opsd": ("fkl", "solution", "uniform", "shuffle"),
    "op2sd": ("fkl", "other_problem", "uniform", "shuffle"),
    "dash": ("dash", "solution", "uniform", "shuffle"),
    "gkd": ("gkd", "solution", "uniform", "shuffle"),
    "minillm": ("minillm", "solution", "uniform", "shuffle"),
    "eopd": ("eopd", "solution", "uniform", "shuffle"),
    "pg": ("pg", "solution", "uniform", "shuffle"),
    "rlsd": ("pg", "solution", "uniform", "shuffle"),
    "rlsd_frontier": ("pg", "dag_frontier", "uniform", "shuffle"),
    "frontier_reward": ("pg", "dag_frontier", "uniform", "shuffle"),
    "aopsd_reward": ("pg", "dag_frontier", "continuation", "competence"),
    "topk16": ("topk_fkl", "solution", "uniform", "shuffle"),
    "topk32": ("topk_fkl", "solution", "uniform", "shuffle"),
    "aopsd": ("pg", "dag_frontier", "continuation", "competence"),
    "continuation": ("pg", "solution", "continuation", "shuffle"),
    "pi_curriculum": ("pg", "dag_frontier", "uniform", "competence"),
    "full_dag": ("pg", "dag_full", "uniform", "shuffle"),
    "frontier": ("pg", "dag_frontier", "uniform", "shuffle"),
    "shuffled": ("pg", "dag_frontier", "shuffled", "competence"),
    "constant": ("pg", "dag_frontier", "constant", "competence"),
    "normalised": ("pg", "dag_frontier", "normalised", "competence"),
    "gap_matched": ("pg", "dag_frontier", "gap_matched", "competence"),
    "gap_only": ("pg", "dag_frontier", "gap_only", "competence"),
    "constant_negative": ("pg", "dag_frontier", "constant_negative", "competence"),
    "no_reference": ("pg", "none", "uniform", "shuffle"),
    "other_problem": ("pg", "other_problem", "uniform", "shuffle"),
    "zero_triggered": ("pg", "dag_frontier", "zero_triggered", "competence"),
    "competence_reversed": ("pg", "dag_frontier", "continuation", "competence_reversed"),
    "global_terciles": ("pg", "dag_frontier", "continuation", "global_terciles"),
}
# What else a config sets, by the numbers of the paper's sweeps.
SETTINGS = {
    "opsd": {"aopsd.objective.token_clip": 0.05},
    "op2sd": {"aopsd.objective.token_clip": 0.05},
    "dash": {"aopsd.objective.token_clip": 0.05},
    "opsd_unclipped": {"aopsd.objective.token_clip": None},
    "opsd_clipped_sum": {"aopsd.objective.token_clip": None, "aopsd.objective.sum_clip": 1.0},
    "auto_betas": {"aopsd.probes.betas": "auto"},
    "anchor_nll": {"aopsd.probes.score_anchor": True},
    "untriggered_half": {"aopsd.probes.untriggered_weight": 0.5},
    "op2sd_4b_paper": {"aopsd.objective.token_clip": 1e-6},
    "topk16": {"aopsd.objective.top_k": 16},
    "topk32": {"aopsd.objective.top_k": 32},
    **{f"delta_{delta}": {"aopsd.probes.threshold": delta} for delta in (1, 2, 3)},
    **{f"k_{k}": {"aopsd.probes.length": k} for k in (4, 8, 16)},
    **{
        f"betas_{positive:g}_{negative:g}": {
            "aopsd.probes.beta_positive": positive,
            "aopsd.probes.beta_negative": negative,
        }
        for positive, negative in ((1, 1), (2.5, 2.5), (1, 2.5))
    },
}


@cache
def load(name, *overrides, base=TINY):
    return load_config(base, overrides, find_method(name))


@pytest.mark.parametrize("name", METHODS)
def test_a_config_is_short_and_goes_over_any_model_so_that_nothing_of_its_own_method_is_left(name):
    method = METHODS[name]
    assert len(find_method(name).read_text(encoding="utf-8").splitlines()) < 10
    assert all(key.startswith("aopsd.") for key in method.settings)
    rows = [row.split(": ", 1) for row in method.row.split("; ")]  # a place in the paper, or none and why
    assert all(re.fullmatch(r"none|(tab|fig):[\w-]+( [a-c])?", label) and text for label, text in rows)
    at_tiny, has_gap = load(name), method.settings["aopsd.objective.name"] == "pg"
    check_inputs(at_tiny)
    at_large = load(name, *([] if has_gap else ["aopsd.engine=local"]), base=LARGE)
    assert at_large.policy["model_name"] == "Qwen/Qwen3-8B"
    for field in ("objective", "context", "weighting", "teacher", "probes", "num_generations_per_prompt"):
        assert getattr(at_large.aopsd, field) == getattr(at_tiny.aopsd, field)


def test_nemo_rl_refuses_the_objectives_that_it_has_not_by_the_line_of_the_method():
    with pytest.raises(UserError, match=r"methods/gkd\.yaml:4: .* must be pg, topk_fkl, fkl or dash with"):
        load("gkd", base=LARGE)
    told = r"^[^:]*: the default of `aopsd\.objective\.support` must be a number K with aopsd.objective.name=fkl and"
    with pytest.raises(UserError, match=told):
        load("opsd", base=LARGE)
    for name in ("opsd", "op2sd", "dash"):
        assert load(name, "aopsd.objective.support=64", base=LARGE).aopsd.objective.support == 64


def test_points_of_the_four_axes_and_settings_beside_them():
    for name, point in POINTS.items():
        aopsd = load(name).aopsd
        assert (aopsd.objective.name, aopsd.context.kind, aopsd.weighting, aopsd.curriculum.name) == point, name
    for name, settings in SETTINGS.items():
        assert settings.items() <= METHODS[name].settings.items(), name
    assert load("base").aopsd.max_num_steps == 0
    assert load("grpo").aopsd.num_generations_per_prompt == 8


def test_every_member_of_the_papers_sweeps_is_aopsd_but_for_one_factor():
    whole = METHODS["aopsd"].settings
    for name in METHODS:
        if name.startswith(("delta_", "k_", "betas_")):
            extra = {key: value for key, value in METHODS[name].settings.items() if whole.get(key) != value}
            assert extra == SETTINGS[name]


def test_a_method_goes_over_the_base_and_overrides_over_the_method():
    assert load("opsd", "aopsd.objective.token_clip=0.5").aopsd.objective.token_clip == 0.5
    other = load_config(TINY, ["aopsd.weighting=uniform"], find_method("aopsd"))
    assert other.aopsd.weighting == "uniform"


def test_the_list_has_every_file_once_and_its_row():
    result = CliRunner().invoke(app, ["methods", "--json"])
    listed = json.loads(result.stdout)
    files = {path.stem for kind in ("methods", "ablations") for path in (FOLDER / kind).glob("*.yaml")}
    assert {method["name"] for method in listed} == files and len(listed) == len(files)
    text = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["methods"]).stdout
    assert all(re.search(rf"^ *{re.escape(name)} ", text, re.MULTILINE) for name in files)
    rows = {method["name"]: method["row"] for method in listed}
    assert rows["topk32"] == "tab:gradient-time: Top-32 forward KL" and rows["k_16"] == "fig:exp-sensitivity b: k = 16"


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(UserError, match=r"no method `ops` .*Did you mean `opsd`\?"):
        find_method("ops")


def test_a_file_without_its_two_lines_is_refused(tmp_path):
    shutil.copytree(FOLDER / "methods", tmp_path / "methods")
    for header in ("", "# Mine\n# Paper: none\n"):
        (tmp_path / "methods/mine.yaml").write_text(f"{header}aopsd: {{weighting: uniform}}\n")
        with pytest.raises(UserError, match=r"mine\.yaml:1: expected `# what it is`"):
            list(list_methods(tmp_path))


def test_the_document_has_every_config_and_its_row():
    rows = dict(re.findall(r"^\| `([\w.]+)` \|.*\| (.+?) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    assert rows == {name: method.row for name, method in METHODS.items()}


# Smaller than the embedded default.
SMALL = (
    *("aopsd.num_prompts_per_step=4", "aopsd.max_num_steps=1", "aopsd.evaluation.data_path=null"),
    *("policy.generation.max_new_tokens=16", "aopsd.judge.max_new_tokens=8", "aopsd.judge.num_retries=0"),
    *("aopsd.curriculum.num_initial_attempts=1", "checkpointing.enabled=false"),
)


def code_paths():
    """Methods that bring an objective, context, weighting or curriculum that none before has, and more."""
    seen = set()
    for name, point in POINTS.items():
        if set(enumerate(point)) - seen:
            seen |= set(enumerate(point))
            yield name
    yield from ("opsd_plan", "opsd_subproblems", "teacher_ema", "teacher_live")


@pytest.mark.slow
@pytest.mark.parametrize("name", code_paths())
def test_a_method_of_each_code_path_takes_a_step_on_the_embedded_model(name, tmp_path):
    from nemo_aopsd.engines import local
    from nemo_aopsd.run.trainer import train

    rows = (REPO / "nemo_aopsd/builtin/data/train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "few.jsonl").write_text("".join(rows[:4]), encoding="utf-8")
    config = load(name, *SMALL, f"logger.log_dir={tmp_path}", f"data.train.data_path={tmp_path}/few.jsonl")
    problems, _ = check_inputs(config)
    train(config, problems, None, local.build(config), tmp_path, resume=False, console=Console(quiet=True))
    (metrics,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert metrics["step"] == 1 and metrics["rollout/count"] == 4 * config.aopsd.num_generations_per_prompt
    assert metrics["train/grad_norm"] >= 0 and (tmp_path / "rollouts/step_000001.jsonl").is_file()
