"""`aopsd plan`: every second of a step by hand on a model and machine of round numbers, and held against real steps."""

import json
from dataclasses import replace
from pathlib import Path

import gguf
import numpy
import pytest
from typer.testing import CliRunner

from benchmarks import plan_step_cost
from nemo_aopsd.cli.app import app
from nemo_aopsd.cluster.doctor import memory
from nemo_aopsd.cluster.doctor.memory import read_layout
from nemo_aopsd.cluster.doctor.model import Layer, ModelSize, check_model, read_size
from nemo_aopsd.cluster.plan import make_local_plan, rows_at_once
from nemo_aopsd.cluster.plan.rates import ERRORS, GPU, GPUS, Rates
from nemo_aopsd.cluster.plan.stages import Setup, answer, decode, first_seconds, read, step_seconds
from nemo_aopsd.cluster.plan.workload import Assumed, Workload, from_config
from nemo_aopsd.config.load import load_config
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.config_json import find_published
from tests import REPO
from tests.local_models import tiny_model

CONFIGS = REPO / "examples/configs"
CLUSTER, TINY = CONFIGS / "aopsd_qwen3_4b_megatron.yaml", CONFIGS / "aopsd_tiny_cpu.yaml"
MEASURED = Path(plan_step_cost.__file__).parent / "measured"

# 600 parameters at work on a token and a head of 1,000 that is the embedding; 1,640 in all. A token takes
# 1,200 + 64 c FLOPs behind c others, its logits 2,000. A decoding step reads 3,200 B of weights, 64 B a cached token.
WIDTHS = {"hidden": 10, "vocabulary": 100, "query_width": 8, "key_heads": 2, "head_width": 4, "mlp_width": 7}
LAYERS = (Layer(attention=100, mlp=200, router=0, experts=0, norms=10),) * 2
SIZE = ModelSize(LAYERS, embedding=1000, head=0, final_norm=20, experts_per_token=0, **WIDTHS)
SHEET = GPU("toy", 10**9, bandwidth=100, flops=1000, link=10, host=20)
SHARES = {  # of the data sheet's rate; the others are waits in seconds
    **{"sampler_bandwidth": 0.8, "sampler_compute": 0.7, "update_compute": 0.6, "score_compute": 0.5},
    **{"link": 0.4, "host": 0.3, "refit": 0.2},
}
WAITS = {"sampler_step": 0.11, "sampler_request": 0.13, "sampler_sync": 0.017, "layer": 0.19, "turn": 2.3}
RATES = Rates(**SHARES, **WAITS)
TOKENS = {"question": 10, "teacher_prompt": 30, "response": 20, "longest": 25, "judge_prompt": 50, "judge_answer": 5}
COUNTS = {"problems": 5, "prompts": 2, "rows": 4, "probes": 6, "probe_length": 3, "initial_attempts": 2}
WORK = Workload(
    **COUNTS,
    **TOKENS,
    is_judged=True,
    teacher_judges=False,
    scores_student=True,
    scoring="trainer",
    probe_runner="requests",
    missing=None,
)


LAYOUT = read_layout(load_config(CLUSTER))


def setup(rows_at_once=1024, **changes):
    ones = dict.fromkeys(("nodes", "gpus_per_node", "tp", "pp", "cp", "ep", "etp", "sampler_tp"), 1)
    layout = replace(LAYOUT, **(ones | {"pack_tokens": 100, "recompute": True} | changes))
    return Setup(SIZE, SHEET, layout, RATES, rows_at_once, score_tokens=100)


def seconds(terms):
    """Of work in seconds at the data sheet's rate, and of counts of waits."""
    return sum(amount / SHARES[name] if name in SHARES else amount * WAITS[name] for name, amount in terms.items())


# Four rows are read at 40 x (1200 + 64 x 5) + 4 x 2000 FLOPs, 68.8 s. They then go 25 steps (80,000 B of weights)
# and 80 tokens behind 20 others each (102,400 B of caches; 80 x (2480 + 2000) FLOPs).
ROLLOUT = {"sampler_compute": 68.8 + 358.4, "sampler_request": 4, "sampler_bandwidth": 1824, "sampler_step": 25}
# 200 x (1200 + 64 x 25) + 4 x 2000, then 20 x (1200 + 64 x 52.5 + 2000); 5 x 3200 + 20 x 52.5 x 64 B
JUDGE = {"sampler_compute": 568 + 131.2, "sampler_request": 4, "sampler_bandwidth": 832, "sampler_step": 5}

# On one GPU that vLLM and the trainer share
ONE = {
    "refit": {"refit": 2 * 1640 / 10, "turn": 1},
    "rollout": ROLLOUT,
    "judge": JUDGE,
    "student": {
        "score_compute": 499.2,  # 120 tokens x (1200 + 64 x 15 + 2000)
        "layer": 4,  # two packs of two layers
        "host": 2 * (1640 + 1640) / 20,  # vLLM's weights go, the trainer's come
        "turn": 1,
    },
    # 200 tokens x (1200 + 64 x 25 + 2000); student aside, teacher in, student back
    "teacher": {"score_compute": 960, "layer": 4, "host": 3 * 2 * 1640 / 20},
    "probes": {
        # six branches of half a block and 3 tokens, behind 10 + 10: 6 x (11 x 2480 + 3 x 2000);
        # going on, 18 tokens behind 30 + 10 + 1.5: 18 x (1200 + 64 x 41.5 + 2000);
        # both prefixes again: 200 x 2800 + 4 x 2000 of the teacher, 120 x 2160 + 4 x 2000 of the student
        "sampler_compute": 199.68 + 105.408 + 568 + 267.2,
        "sampler_request": 2 * 6 + 4 + 4,
        "sampler_bandwidth": 6 * 20 * 64 / 100 + (3 * 3200 + 18 * 41.5 * 64) / 100,
        "sampler_step": 3,
        "host": 4 * 2 * 1640 / 20,  # vLLM's weights awake; the student's aside, the teacher's in, the student's back
        "turn": 1,
    },
    # of question and response: forward, backward twice, forward again; Adam is not counted
    "update": {"update_compute": 4 * 499.2, "layer": 3 * 4, "turn": 1},
}

# On four GPUs of a node, tensor parallel by two: two rows each, half the work, and messages.
# A GPU has 600 / 2 + 1020 / 2 + 20 = 830 parameters (norms whole) as trainer, 820 as vLLM.
FOUR = {
    "refit": ONE["refit"],
    "rollout": {
        "sampler_compute": 427.2 / 4,
        "sampler_request": 2,
        "sampler_bandwidth": (80_000 + 102_400 / 2) / 2 / 100,
        "sampler_step": 25,
        "sampler_sync": 2 * 2 * 25,
    },
    "judge": {
        "sampler_compute": 699.2 / 4,
        "sampler_request": 2,
        "sampler_bandwidth": (16_000 + 67_200 / 2) / 2 / 100,
        "sampler_step": 5,
        "sampler_sync": 2 * 2 * 5,
    },
    "student": {
        "score_compute": 499.2 / 4,
        "layer": 2,
        "link": 4 * (60 * 2 * 2 * 10) / 2 / 10,  # 60 tokens, 2 layers, 2 B, 10 wide; half of it to the neighbour
        "host": 2 * (830 + 820) / 20,
        "turn": 1,
    },
    "teacher": {
        "score_compute": 960 / 4,
        "layer": 2,
        "link": 4 * (100 * 2 * 2 * 10) / 2 / 10,
        "host": 3 * 2 * 830 / 20,
    },
    "probes": {
        "sampler_compute": (199.68 + 105.408 + 568 + 267.2) / 4,
        "sampler_request": 2 * 3 + 2 + 2,
        "sampler_bandwidth": (3 * 20 * 64 + 3 * 3200 + 9 * 41.5 * 64) / 2 / 100,
        "sampler_step": 3,
        "sampler_sync": 2 * 2 * 3,
        "host": 4 * 2 * 820 / 20,
        "turn": 1,
    },
    "update": {"update_compute": 4 * 499.2 / 4, "layer": 3 * 2, "link": 3 * 480, "turn": 1},
}
SHARED = {"gpus_per_node": 4, "tp": 2, "sampler_tp": 2}


@pytest.mark.parametrize(("made", "expected"), [(setup(), ONE), (setup(**SHARED), FOUR)], ids=["one", "four"])
def test_every_stage_of_a_step_by_hand(made, expected):
    assert step_seconds(made, WORK) == pytest.approx({stage: seconds(terms) for stage, terms in expected.items()})


@pytest.mark.parametrize(
    ("changes", "work", "stage", "expected"),
    [
        # the change of turn goes to the first stage that scores
        ({}, {"scores_student": False}, "teacher", {**ONE["teacher"], "host": (2 * 3280 + 6 * 1640) / 20, "turn": 1}),
        # a teacher that judges changes places with the student in vLLM
        ({}, {"teacher_judges": True}, "judge", {**JUDGE, "host": 3 * 2 * 1640 / 20}),
        # a kept cache saves the probes a turn, the student's prefixes and vLLM's way back
        (
            {"keeps_cache": True},
            {},
            "probes",
            {
                **ONE["probes"],
                "sampler_compute": 199.68 + 105.408 + 568,
                "sampler_request": 2 * 6 + 4,
                "host": 3 * 2 * 1640 / 20,
                "turn": 0,
            },
        ),
        # without recomputation a pass and its messages are saved
        (
            {"recompute": False, **SHARED},
            {},
            "update",
            {"update_compute": 3 * 499.2 / 4, "layer": 2 * 2, "link": 2 * 480, "turn": 1},
        ),
    ],
    ids=["turn", "teacher_judges", "keep_cache", "no_recomputation"],
)
def test_what_a_setting_changes_by_hand(changes, work, stage, expected):
    assert step_seconds(setup(**changes), replace(WORK, **work))[stage] == pytest.approx(seconds(expected))


def test_scoring_by_the_sampler_by_hand():
    """No turn of the trainer before its update, nothing read twice, and the head for the response tokens alone."""
    read_teacher = 560 + 160  # 200 x (1200 + 64 x 25), and 80 x 2000 for the logits
    expected = {
        "teacher": {"host": 2 * 2 * 1640 / 20, "sampler_compute": read_teacher, "sampler_request": 4},
        "probes": {
            "host": 2 * 1640 / 20,
            "sampler_compute": 199.68 + 105.408,
            "sampler_request": 2 * 6,
            "sampler_bandwidth": ONE["probes"]["sampler_bandwidth"],
            "sampler_step": 3,
        },
        "update": {**ONE["update"], "host": 2 * 1640 / 20},
    }
    found = step_seconds(setup(), replace(WORK, scoring="sampler", scores_student=False))
    assert {stage: found[stage] for stage in expected} == pytest.approx({s: seconds(t) for s, t in expected.items()})
    assert "student" not in found
    batched = step_seconds(setup(), replace(WORK, scoring="sampler", scores_student=False, probe_runner="batched"))
    assert found["probes"] - batched["probes"] == pytest.approx(seconds({"sampler_request": 2 * 6}))
    roomy = replace(
        setup(), gpu=replace(SHEET, memory=10**12)
    )  # the student waits on the GPU: two copies of three fewer
    room = step_seconds(roomy, replace(WORK, scoring="sampler", scores_student=False))
    assert [found[stage] - room[stage] for stage in ("teacher", "probes")] == [
        pytest.approx(seconds({"host": 164}))
    ] * 2
    student = {"sampler_compute": 259.2 + 160, "sampler_request": 4}  # 120 x (1200 + 64 x 15), and 80 x 2000
    assert step_seconds(setup(), replace(WORK, scoring="prefill"))["student"] == pytest.approx(seconds(student))


def test_a_stage_that_does_not_happen_is_absent():
    found = step_seconds(setup(), replace(WORK, scores_student=False, is_judged=False, probes=0))
    assert set(found) == {"refit", "rollout", "teacher", "update"}


def test_the_initial_attempts_are_answered_and_judged_once_a_problem():
    """Two problems twice are as many rows as a step's; five problems are three such batches; one refit for all."""
    once = 3 * (seconds(ROLLOUT) + seconds(JUDGE)) + seconds(ONE["refit"])
    assert first_seconds(setup(), WORK) == pytest.approx(once)
    assert first_seconds(setup(), replace(WORK, initial_attempts=0)) == 0


def test_rows_that_do_not_fit_wait_for_a_second_wave():
    one, two = decode(setup(), 64, 300, 20, 20), decode(setup(rows_at_once=40), 64, 300, 20, 20)
    assert two - one == pytest.approx(seconds({"sampler_step": 20, "sampler_bandwidth": 20 * 3200 / 100}))
    layout = replace(setup().layout, utilization=0.5)
    cache = 0.5 * 10**11 - 2 * 1640 - 4e9  # of 64 B a token; rows end with 20 tokens behind 30 of the judge's
    assert rows_at_once(SIZE, layout, replace(SHEET, memory=10**11), WORK) == 1024 < cache // (64 * 50)
    few = replace(SHEET, memory=8 * 10**9 + 2 * (2 * 1640 + 64 * 50 * 7))
    assert rows_at_once(SIZE, layout, few, WORK) == 7


def test_the_rates_give_back_the_measurements_they_are_anchored_to():
    size = read_size(find_published("Qwen/Qwen3-4B"))
    made = replace(setup(), size=size, gpu=GPUS["h100"], rates=Rates())
    assert answer(made, 64, 300, 2048, 2048) == pytest.approx(19.7, rel=0.05)
    assert read(made, 64, 3548) == pytest.approx(3.4, rel=0.05)
    requests = 1472 * made.rates.sampler_request
    assert decode(made, 1472, 1500 + 1024, 7.5, 7.5) + requests - 7.5 * 1.2e-3 == pytest.approx(2.4, rel=0.05)


def test_measured_steps_of_qwen3_4b_s_shape_are_off_by_what_the_plan_says():
    """Runs of benchmarks/step_cost_nemo.py on one GPU, and on two; docs/scaling.md has them stage by stage."""
    lines = [line for path in MEASURED.glob("step_cost_*.json") for line in plan_step_cost.compare(path)]
    errors = {
        stage: [round(line.error, 2) for line in lines if line.stage == stage and line.measured] for stage in ERRORS
    }
    assert {stage: (min(found), max(found)) for stage, found in errors.items()} == ERRORS
    assert len(errors["total"]) == 15


# Rows and tokens of a step

ASSUMED = Assumed(
    60, response_share=0.5, question=100, solution=1000, graph=400, wording=30, verdict=70, trigger_rate=0.02
)


def workload(*words):
    words = ("data.train.data_path=none", "policy.generation.max_new_tokens=2000", "aopsd.scoring=trainer", *words)
    return from_config(load_config(CLUSTER, words), assumed=ASSUMED)


def test_rows_and_tokens_by_hand():
    work = workload("aopsd.num_prompts_per_step=8", "aopsd.num_generations_per_prompt=3", "aopsd.probes.length=5")
    assert (work.problems, work.steps, work.prompts, work.rows) == (60, 8, 8, 24)
    assert (work.question, work.response, work.longest) == (100, 1000, 2000)
    assert work.probes == 0.02 * 1000 * 24 and work.probe_length == 5
    assert (work.judge_prompt, work.judge_answer) == (100 + 400 + 30 + 1000, 70)
    short = workload("aopsd.judge.max_attempt_tokens=600", "aopsd.judge.max_new_tokens=50")
    assert (short.judge_prompt, short.judge_answer) == (100 + 400 + 30 + 600, 50)
    few = workload("aopsd.num_prompts_per_step=64", "aopsd.num_generations_per_prompt=2")  # 60 problems
    assert (few.steps, few.prompts, few.rows, few.probes) == (1, 60, 120, 0.02 * 1000 * 120)
    assert workload("aopsd.weighting=uniform").probes == 0
    assert workload("aopsd.curriculum.name=shuffle").initial_attempts == 0 < work.initial_attempts


def test_what_the_teacher_reads_beside_the_question():
    graph = dict.fromkeys(("dag_full", "plan", "subproblems"), 400 + 30)
    others = {"none": 0, "solution": 1000 + 30, "other_problem": 100 + 1000 + 30, "dag_frontier": 200 + 30}
    for context, shown in (graph | others).items():
        assert workload(f"aopsd.context.kind={context}").teacher_prompt == 100 + shown, context


@pytest.mark.parametrize(
    ("name", "curriculum", "context", "scores_student", "is_judged"),
    [
        ("pg", "competence", "dag_frontier", True, True),
        ("pg", "competence", "solution", True, True),  # for the curriculum
        ("pg", "shuffle", "solution", True, False),
        ("topk_fkl", "shuffle", "solution", False, False),
    ],
)
def test_an_objective_pays_for_what_it_declares(name, curriculum, context, scores_student, is_judged):
    words = [f"aopsd.objective.name={name}", f"aopsd.curriculum.name={curriculum}", f"aopsd.context.kind={context}"]
    work = workload("aopsd.weighting=uniform", *words)
    assert (work.scores_student, work.is_judged, work.probes) == (scores_student, is_judged, 0)


# The command


def call(*words):
    return CliRunner().invoke(app, ["plan", *map(str, words)])


def planned(*words, config=CLUSTER):
    return json.loads(call(config, "data.train.data_path=none", *words, "--json").stdout)


def test_an_epoch_is_its_steps():
    found = planned()
    stages = {"refit", "rollout", "judge", "teacher", "probes", "update"}  # sampling has scored the student
    assert set(found["step_seconds"]) == stages
    assert found["epoch_seconds"]["rollout"] == pytest.approx(23 * found["step_seconds"]["rollout"])  # 725 problems
    assert found["run_steps"] == found["steps_per_epoch"] * 3  # epochs
    a_step = sum(found["step_seconds"].values())
    assert found["run_seconds"] == pytest.approx(found["initial_attempts_seconds"] + found["run_steps"] * a_step)
    assert found["epoch_gpu_hours"] == pytest.approx(sum(found["epoch_seconds"].values()) * 8 / 3600)
    assert found["initial_attempts_seconds"] > found["epoch_seconds"]["rollout"]  # eight attempts a problem
    assert {check["name"] for check in found["memory_checks"]} >= {"memory: training", "memory: sampling"}
    printed = " ".join(call(CLUSTER, "data.train.data_path=none").stdout.split())
    assert "initial attempts" in printed and "data.train.data_path=none" in printed
    assert "Adam" in printed and "extrapolation" in printed
    given = planned("--response", 1000)["workload"]
    assert (given["response"], given["longest"]) == (1000, 4096)
    assert given["probes"] == pytest.approx(0.0115 * 1000 * 32)


@pytest.mark.parametrize(
    ("config", "gpu", "num_gpus", "is_measured"),
    [
        ("4b_megatron", "h200", 2, True),
        ("4b_megatron", "h100", 2, False),
        ("4b_megatron", "h200", 4, False),
        ("8b", "h200", 2, False),
    ],
)
def test_what_was_not_measured_is_called_an_extrapolation_and_has_no_range_of_errors(
    config, gpu, num_gpus, is_measured
):
    path, words = CONFIGS / f"aopsd_qwen3_{config}.yaml", ("--gpu", gpu, f"cluster.gpus_per_node={num_gpus}")
    found = planned(*words, config=path)
    assert any("extrapolation" in note for note in found["notes"]) != is_measured
    assert found["measured_errors"] == ({stage: list(pair) for stage, pair in ERRORS.items()} if is_measured else {})
    printed = " ".join(call(path, "data.train.data_path=none", *words).stdout.split())
    assert ("-11% to +19%" in printed) == is_measured


def test_recomputing_nothing_is_offered_with_what_it_would_take():
    """Both are what a plan without recomputation says; the doctor's memory by hand, the seconds above."""
    key, scoring = "policy.megatron_cfg.activation_checkpointing=false", "aopsd.scoring=trainer"
    found, keeping = planned(scoring), planned(scoring, key)
    offer = {"memory": keeping["memory_bytes"]["training"], "update_seconds": keeping["step_seconds"]["update"]}
    assert found["unrecomputed"] == offer and keeping["unrecomputed"] is None
    printed = " ".join(call(CLUSTER, "data.train.data_path=none", scoring).stdout.split())
    before, after = found["step_seconds"]["update"], offer["update_seconds"]
    assert before > after
    update = f"the update is predicted to take {after:.2f} s and not {before:.2f} s"
    assert f"{key} would fit, by estimate: 73.5 GB of 85.5 GB a GPU, and {update}" in printed
    assert "would fit" not in call(CLUSTER, "data.train.data_path=none", key).stdout
    nodes = planned("cluster.num_nodes=2")  # memory is known, seconds are not
    assert nodes["unmeasured"] == ["2 nodes"] and nodes["unrecomputed"] is None


@pytest.mark.parametrize(
    ("name", "words", "unmeasured"),
    [
        ("qwen3_8b", (), []),
        ("qwen3_4b_megatron_fp8", (), ["FP8"]),
        ("qwen3_32b", (), ["2 nodes"]),
        ("qwen3_30b_a3b", (), ["a mixture of experts", "2 nodes", "pipeline_model_parallel_size=2"]),
        ("qwen3_8b", ("policy.megatron_cfg.context_parallel_size=2",), ["context_parallel_size=2"]),
    ],
)
def test_no_seconds_are_stated_for_what_was_never_measured(name, words, unmeasured):
    found = planned(*words, config=CONFIGS / f"aopsd_{name}.yaml")
    assert found["unmeasured"] == unmeasured and bool(found["step_seconds"]) != bool(unmeasured)
    assert found["memory_bytes"]["training"] > 1e10
    if unmeasured:
        assert unmeasured[0] in call(CONFIGS / f"aopsd_{name}.yaml", *words).stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((CLUSTER, "--gpu", "v100"), "h100, h200"),
        ((TINY, "--gpu", "v100"), "h100, h200"),
        ((CLUSTER, "policy.megatron_cfg.enabled=false"), "policy.megatron_cfg.enabled=true"),
        ((TINY, "policy.model_name=nope"), "policy.model_name=nope"),
        ((CLUSTER, "cluster.gpus_per_node=3"), "cluster.gpus_per_node is 3"),
        ((CLUSTER, "cluster.gpus_per_node=null"), "cluster.gpus_per_node is null"),
        ((CLUSTER, "policy.model_name=nope"), "policy.model_name=nope"),
        ((CLUSTER, "--method", "ops"), "`opsd`"),
    ],
)
def test_mistakes_are_named(words, named):
    outcome = call(*words)
    assert isinstance(outcome.exception, UserError) and named in str(outcome.exception)


@pytest.mark.parametrize(
    ("config", "word", "why"),
    [
        (CLUSTER, "policy.generation.temperature=0.7", "policy.generation.temperature is 0.7; expected 1: gaps are"),
        (TINY, "policy.optimizer.name=SGD", "policy.optimizer.name is 'SGD'; the local engine has"),
        (CLUSTER, "aopsd.seed=1", None),
        (TINY, "aopsd.seed=1", None),
    ],
)
def test_a_plan_of_what_the_engine_refuses_says_so_beside_the_figures(config, word, why):
    told = [line for line in call(config, word).stdout.splitlines() if line.startswith("refused: ")]
    found = planned(word, config=config)
    assert found["memory_bytes"]["training"] > 0
    assert (found["refused"], told) == (None, []) if why is None else (why in found["refused"] and why in told[0])


def test_a_run_on_one_machine_has_its_work_and_memory_and_no_seconds():
    """384 problems, 32 a step; memory as `aopsd doctor` counts it."""
    found, config = json.loads(call(TINY, "--json").stdout), load_config(TINY)
    items = memory.local_items(read_size(check_model(config.policy["model_name"])[1]), config, "host")
    assert (found["steps_per_epoch"], found["workload"]["rows"], found["parameters"]) == (12, 32, 631_872)
    assert found["memory_bytes"]["training"] == memory.total(items, "host", memory.TRAIN)
    assert "step_seconds" not in found and (found["gpu"], found["memory_checks"]) == (None, [])  # no verdict
    printed = call(TINY, "data.train.data_path=none").stdout
    assert "question 150 tokens (assumed)" in (told := " ".join(printed.split())) and "prompt 750 (assumed)" in told
    [line] = [line for line in printed.splitlines() if "aopsd.max_num_steps=2" in line]
    assert (
        line.endswith(" logger.log_dir=runs/timed") and "725 problems are assumed" in printed and "kept KV" in printed
    )


def test_a_gguf_file_is_planned_from_its_metadata_and_one_that_is_cut_is_named(tmp_path):
    writer = gguf.GGUFWriter(path := tmp_path / "x.gguf", "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_vocab_size(64)
    writer.add_tensor("token_embd.weight", numpy.zeros((64, 32), numpy.float32))  # and no head: it is the embedding
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = tiny_model("llama")  # of these sizes
    assert planned(f"policy.model_name={path}", config=TINY)["parameters"] == sum(p.numel() for p in model.parameters())
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UserError, match=rf"{path}: .*cut or damaged: .*\. Download the model again\.$"):
        make_local_plan(load_config(TINY, [f"policy.model_name={path}"]))


@pytest.mark.parametrize(("gpu", "memory_bytes"), [("h100", 81559 * 2**20), ("h200", 143771 * 2**20)])
def test_a_named_gpu_gets_its_verdict_for_the_local_engine(gpu, memory_bytes, monkeypatch):
    config = load_config(TINY)
    items = memory.local_items(read_size(check_model(config.policy["model_name"])[1]), config, "gpu")
    need = memory.total(items, "gpu", memory.TRAIN)
    found = json.loads(call(TINY, "--gpu", gpu, "--json").stdout)
    assert (found["gpu"], found["memory_bytes"]["training"]) == (GPUS[gpu].name, need)
    [check] = found["memory_checks"]
    assert (check["severity"], check["expected"]) == ("ok", f"at most {memory_bytes / 1e9:.1f} GB")
    assert ": fits." in call(TINY, "--gpu", gpu).stdout
    monkeypatch.setitem(GPUS, gpu, replace(GPUS[gpu], memory=int(need)))  # above nine tenths is a warning
    printed = call(TINY, "--gpu", gpu).stdout
    assert "may not fit. Largest" in " ".join(printed.split()) and "lower " in printed


def test_a_plan_of_one_machine_tells_of_the_attempts_before_the_first_step():
    """384 problems, 4 attempts each; a timing of two steps would be a timing of them."""
    printed = " ".join(call(TINY, "aopsd.curriculum.num_initial_attempts=4").stdout.split())
    assert "1,536 attempts, each judged, before step 1" in printed and "aopsd.curriculum.name=shuffle" in printed
    assert "before step 1" not in call(TINY, "aopsd.curriculum.name=shuffle").stdout


def test_the_table_of_planned_and_measured_seconds_names_its_columns(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["plan_step_cost", str(MEASURED / "earlier/step_cost_h200_tp2.json")])
    plan_step_cost.main()
    columns, *lines = capsys.readouterr().out.splitlines()
    assert columns.split() == ["arm", "stage", "plan,", "s", "run,", "s", "error"]
    assert {len(columns)} == {len(line) for line in lines}  # they stand over their numbers
