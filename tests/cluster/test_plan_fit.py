"""Fitting constants to runs whose constants are known, and the command on run folders."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from nemo_aopsd.cli.app import app
from nemo_aopsd.cli.plan import _gpu_of
from nemo_aopsd.cluster.plan import make_plan
from nemo_aopsd.cluster.plan.compare import compare
from nemo_aopsd.cluster.plan.constants import read_constants, write_fit
from nemo_aopsd.cluster.plan.fitting import fit, with_fit
from nemo_aopsd.cluster.plan.measured import read_run
from nemo_aopsd.config.load import load_config, to_yaml
from nemo_aopsd.errors import UserError
from tests import REPO
from tests.fake_run import write_run

CONFIG = REPO / "examples/configs/aopsd_qwen3_4b_megatron.yaml"
TINY = REPO / "examples/configs/aopsd_tiny_cpu.yaml"
TINY_DATA = REPO / "nemo_aopsd/builtin/data/train.jsonl"
TRUE = {"sampler_bandwidth": 0.6, "sampler_step": 3e-3, "update_compute": 0.25, "score_compute": 0.5, "turn": 4.0}


def planned(tokens, gpus=8, kind="h100"):
    words = ["data.train.data_path=none", f"policy.generation.max_new_tokens={tokens}"]
    return make_plan(load_config(CONFIG, words), kind, gpus)


def measured_as(plan, true):
    """A run that took what `true` constants predict; the refit within its rollout."""
    values = {name: replace(constant, value=true.get(name, constant.value))
              for name, constant in plan.constants.by_name.items()}  # fmt: skip
    constants = replace(plan.constants, by_name=values)
    seconds = {stage: constants.seconds(terms) for stage, terms in plan.terms.items()}
    seconds["rollout"] += seconds.pop("refit")
    return SimpleNamespace(seconds=lambda: seconds)


def runs(true=TRUE):
    plans = [planned(tokens, gpus) for tokens in (256, 1024, 4096, 8192) for gpus in (2, 8)]
    return [(measured_as(plan, true), plan) for plan in plans]


def test_a_fit_finds_constants_that_the_data_speak_of():
    fitted = {each.after.name: each for each in fit(runs())}
    for name, value in TRUE.items():
        assert fitted[name].after.value == pytest.approx(value, rel=0.15), name
        assert "8 runs on h100, 48 stage times" in fitted[name].after.source
    statuses = {name: fitted[name].after.status for name in TRUE}
    # A step's wait and its read of the weights grow together: only their sum is known well.
    assert statuses == dict.fromkeys(TRUE, "fitted") | {"sampler_step": "assumption"}


def test_what_the_data_do_not_speak_of_stays_an_assumption_at_its_value():
    (each,) = [each for each in fit(runs()) if each.after.name == "trainer_bandwidth"]
    assert each.after.status == "assumption" and each.uncertainty > 1
    assert each.after.value == pytest.approx(each.before.value, rel=0.1)


def test_a_fit_predicts_a_run_that_it_has_not_seen():
    fitted = fit(runs())
    plan = planned(2048, 16)
    for constants, worst in ((plan.constants, 1.0), (with_fit(plan.constants, fitted), 0.05)):
        lines = compare(measured_as(plan, TRUE), replace(plan, constants=constants))
        assert max(abs(line.error) for line in lines) < worst
    assert max(abs(line.error) for line in compare(measured_as(plan, TRUE), plan)) > 0.3  # unfitted


def test_a_fit_is_the_minimum_of_its_sum_of_squares():
    """Against numpy's own least squares on the stacked system, where no bound is met."""
    given = runs()
    names = sorted({name for _, plan in given for terms in plan.terms.values() for name in terms})
    theta = np.array([given[0][1].constants.by_name[name].theta for name in names])
    rows, sides = [], []
    for run, plan in given:
        parts = {stage: dict(terms) for stage, terms in plan.terms.items()}
        for name, amount in parts.pop("refit").items():
            parts["rollout"][name] = parts["rollout"].get(name, 0.0) + amount
        for stage, terms in parts.items():
            rows.append([terms.get(name, 0.0) * t / run.seconds()[stage] / 0.05
                         for name, t in zip(names, theta, strict=True)])  # fmt: skip
            sides.append(1 / 0.05)
    rows += list(np.eye(len(names)) / 3)
    sides += [1 / 3] * len(names)
    expected = np.linalg.lstsq(np.array(rows), np.array(sides))[0]
    found = np.array([each.after.theta for each in fit(given)]) / theta
    assert found == pytest.approx(expected, rel=1e-6)


def test_no_efficiency_is_fitted_above_one():
    fast = [(SimpleNamespace(seconds=lambda plan=plan: {"rollout": 0.1, "update": 0.01}), plan)
            for plan in (planned(1024), planned(4096))]  # fmt: skip
    for each in fit(fast):
        assert each.after.value > 0 and (each.after.kind == "seconds" or each.after.value <= 1 + 1e-9)


def test_runs_on_different_gpus_are_not_fitted_together():
    plans = [planned(1024), planned(1024, kind="h200")]
    with pytest.raises(UserError, match="one engine on one kind of GPU"):
        fit([(measured_as(plan, {}), plan) for plan in plans])


def test_a_fit_is_written_and_read_again(tmp_path):
    fitted = fit(runs())
    before = read_constants("nemo_rl")
    path = tmp_path / "fit.yaml"
    path.write_text(write_fit(with_fit(before, fitted), [each.after.name for each in fitted]))
    after = read_constants("nemo_rl", path)
    assert after == with_fit(before, fitted)
    shares = make_plan(load_config(CONFIG, ["data.train.data_path=none"]), "h100", fitted=path).shares_by_status()
    assert shares["fitted"] > 0.7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("engines: {local: {}}", "no such constants in it. Expected constants of aopsd.engine=nemo_rl"),
        ("", "no such constants in it. Expected constants of aopsd.engine=nemo_rl"),
        ("- 1", "no such constants in it"),
        ("a: [", "broken YAML: .* aopsd.engine=nemo_rl"),
        ("engines: {nemo_rl: {turn: {kind: seconds, value: -1, status: fitted, source: s}}}", "`turn`"),
        ("engines: {nemo_rl: {speed: {kind: seconds, value: 1, status: fitted, source: s}}}", "`speed`"),
    ],
)
def test_a_file_that_is_no_fit_is_refused(content, message, tmp_path):
    path = tmp_path / "fit.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        read_constants("nemo_rl", path)


def test_constants_that_are_no_file_of_text_are_refused(tmp_path):
    (tmp_path / "fit.yaml").write_bytes(b"engines:\n  l\xe4nge: 1\n")
    for name, message in (
        ("fit.yaml", ":2: byte 3 of the line is not UTF-8"),
        ("", ": a folder"),
        ("x", ": no such f"),
    ):
        with pytest.raises(UserError, match=f"--constants {tmp_path / name}{message}"):
            read_constants("nemo_rl", tmp_path / name)


# The command


@pytest.fixture
def run(tmp_path):
    """A run of the embedded model on the local engine: 18 steps with made-up seconds."""
    folder = write_run(tmp_path / "run")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["policy"]["model_name"] = str(REPO / "nemo_aopsd/builtin/model")
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def call(*words):
    return CliRunner().invoke(app, ["plan", *map(str, words)])


def error_of(*words):
    outcome = call(*words)
    assert isinstance(outcome.exception, UserError), outcome.output
    return str(outcome.exception)


def test_json_holds_what_the_tables_do():
    found = json.loads(call(CONFIG, "data.train.data_path=none", "--gpus", "16", "--json").stdout)
    assert found["gpus"] == 16 and found["layout"]["nodes"] == 2
    assert set(found["step_seconds"]) == {"refit", "rollout", "judge", "student", "teacher", "probes", "update"}
    assert found["epoch_gpu_hours"] == pytest.approx(sum(found["epoch_seconds"].values()) * 16 / 3600)
    assert found["constants"]["turn"]["status"] == "assumption" and 0 < found["assumed_share"] < 1
    assert found["workload"]["problems"] == 725 and "725 problems and their lengths" in found["assumed_data"]


def test_assumptions_are_said_aloud():
    printed = call(CONFIG, "data.train.data_path=none").stdout
    assert printed.count("ASSUMPTIONS") == 3 and "update_compute" in printed and "response_share" in printed


def test_a_data_file_that_is_not_there_is_said_before_the_numbers(run):
    missing = "no file data.train.data_path=none (looked from"
    head, _, _ = call(CONFIG, "data.train.data_path=none").stdout.partition("\nstage ")
    assert missing in head and "725 problems and their lengths" in head
    assert "no file" not in call(TINY, "--gpu", "cpu").stdout
    with_run = call(TINY, "--gpu", "cpu", "--lengths", run, "data.train.data_path=none").stdout
    assert missing in with_run and "725 problems are assumed" in with_run
    (run.parent / "problems.jsonl").unlink()
    for option in ("--against", "--fit"):
        assert f"no file data.train.data_path={run.parent}/problems.jsonl" in call(option, run, "--gpu", "cpu").stdout


def test_predicted_against_measured_of_a_run(run):
    measured = read_run(run)
    assert len(measured.steps) == 17  # the first warms up
    rows = [json.loads(line) for path in sorted((run / "rollouts").iterdir())[1:] for line in path.open()]
    work = measured.workload(make_plan(measured.config, "cpu").work)
    assert work.response == pytest.approx(sum(len(row["response"]) for row in rows) / len(rows))
    assert work.probes == pytest.approx(sum(len(row["probes"]) for row in rows) / 17)
    assert (work.rows, work.problems) == (8, 48)
    outcome = call("--against", run, "--gpu", "cpu")
    assert outcome.exit_code == 0, outcome.output
    stages = [line.split()[0] for line in outcome.stdout.partition("\nstage ")[2].splitlines()[1:]]
    assert stages[:7] == ["rollout", "judge", "student", "teacher", "probes", "update", "total"]
    assert stages.count("total") == 1 and "total" not in measured.seconds()


def test_a_fit_of_a_run_is_written_and_used(run, tmp_path):
    out = tmp_path / "fit.yaml"
    outcome = call("--fit", run, "--gpu", "cpu", "--out", out)
    assert outcome.exit_code == 0, outcome.output
    assert "no validation" in " ".join(outcome.stdout.split())
    assert set(yaml.safe_load(out.read_text())["engines"]) == {"local"}
    assert call("--against", run, "--gpu", "cpu", "--constants", out).exit_code == 0


def test_the_device_of_a_local_run_is_not_guessed(run):
    for option in ("--against", "--fit"):
        assert "Add --gpu: one of h100, h200, a100, b200, cpu." in error_of(option, run)
    config = load_config(run / "config.yaml", ["data.train.data_path=none"])
    cluster = SimpleNamespace(folder=run, config=SimpleNamespace(aopsd=replace(config.aopsd, engine="nemo_rl")))
    assert (_gpu_of(cluster, None), _gpu_of(cluster, "h200")) == ("h100", "h200")
    assert "1 x one CPU core" in " ".join(call("--against", run, "--gpu", "cpu").stdout.split())


def test_a_method_goes_over_the_config():
    """What a step of it does: DASH has no judge and no probes, GRPO no teacher and 8 answers, SFT samples nothing."""
    words = (TINY, "--gpu", "cpu", "--json")
    stages = {
        name: json.loads(call(*words, "--method", name).stdout)["step_seconds"].keys()
        for name in ("aopsd", "dash", "grpo", "sft")
    }
    assert stages == {
        "aopsd": {"rollout", "judge", "student", "teacher", "probes", "update"},
        "dash": {"rollout", "update"},
        "grpo": {"rollout", "student", "update"},
        "sft": {"update"},
    }
    grpo = json.loads(call(*words, "--method", "grpo", "aopsd.num_prompts_per_step=4").stdout)
    assert grpo["workload"]["rows"] == 32
    assert any("no step is taken" in note for note in json.loads(call(*words, "--method", "base").stdout)["notes"])


def test_a_run_tells_a_method_only_what_is_the_same_for_both(run):
    """Its frontier is no solution, and its probes are none of a method without; the lengths of rows are its own."""
    solutions = [len(problem["solution"]) for problem in map(json.loads, TINY_DATA.open())]
    context = sum(solutions) / len(solutions) / 3.3 + 250  # at 3.3 characters a token, and the wording
    rows = [json.loads(line) for path in sorted((run / "rollouts").iterdir())[1:] for line in path.open()]
    num_probes = sum(len(row["probes"]) for row in rows)
    for name, probes in (("opsd", 0), ("continuation", num_probes / len(rows) * 32)):
        words = (TINY, "--method", name, "--json")
        alone, found = (json.loads(call(*words, *more).stdout)["workload"] for more in ((), ("--lengths", run)))
        assert found["question"] == 3 and found["teacher_prompt"] == pytest.approx(3 + context)
        assert found["response"] == pytest.approx(sum(len(row["response"]) for row in rows) / len(rows))
        assert found["probes"] == pytest.approx(probes) and (alone["probes"] > 0) == (probes > 0)


def test_probes_of_a_run_without_any_are_the_plans_rate_of_its_responses(run):
    config = load_config(run / "config.yaml", ["aopsd.weighting=uniform"])
    (run / "config.yaml").write_text(to_yaml(config))
    rows = [json.loads(line) for path in sorted((run / "rollouts").iterdir())[1:] for line in path.open()]
    found = json.loads(call(TINY, "--method", "continuation", "--json", "--lengths", run).stdout)["workload"]
    tokens = sum(len(row["response"]) for row in rows) / len(rows) * 32
    assert found["probes"] == pytest.approx(0.0115 * tokens)


def test_a_run_without_a_teacher_is_compared_as_any_other(run):
    config = load_config(run / "config.yaml", ["aopsd.objective.name=sft", "aopsd.weighting=uniform"])
    (run / "config.yaml").write_text(to_yaml(config))
    for file in (run / "rollouts").iterdir():
        rows = [json.loads(line) | {"teacher_prompt": None, "probes": []} for line in file.open()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = call("--against", run, "--gpu", "cpu")
    assert outcome.exit_code == 0, outcome.output


def test_mistakes_are_named(run, tmp_path):
    assert "expected one of CONFIG" in error_of()
    assert "goes over a CONFIG" in error_of("--method", "opsd", "--against", run)
    assert "Did you mean `opsd`?" in error_of(CONFIG, "--method", "ops")
    assert "expected one of CONFIG" in error_of(CONFIG, "--against", run)
    assert "only --fit writes" in error_of(CONFIG, "--out", tmp_path / "x")
    assert "no run in it" in error_of("--against", tmp_path)
    assert "expected one of h100" in error_of(CONFIG, "--gpu", "v100")
    assert "one device" in error_of("--against", run, "--gpu", "cpu", "--gpus", "4")
    (run / "metrics.jsonl").write_text("")
    assert "fewer than two steps" in error_of("--against", run)
