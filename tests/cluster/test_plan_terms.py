"""The cost model against sums by hand, every term of every stage, on a model and machines of round numbers."""

from dataclasses import replace

import pytest

from nemo_aopsd.cluster.doctor.memory import read_layout
from nemo_aopsd.cluster.doctor.model_size import Layer, ModelSize
from nemo_aopsd.cluster.plan import before_training, make_plan
from nemo_aopsd.cluster.plan.constants import GPU, read_constants
from nemo_aopsd.cluster.plan.stages import Setup, step_terms
from nemo_aopsd.cluster.plan.workload import Workload, from_config
from nemo_aopsd.config.load import load_config
from tests import REPO

CONFIGS = REPO / "examples/configs"
CLUSTER, TINY = CONFIGS / "aopsd_qwen3_4b_megatron.yaml", CONFIGS / "aopsd_tiny_cpu.yaml"

# 600 parameters at work on a token and a head of 1,000 that is the embedding; 1,640 in all. A token takes
# 1,200 + 64 c FLOPs behind c others, its logits 2,000. A decoding step reads 3,200 B of weights, 64 B a cached token.
SIZE = ModelSize(
    layers=(Layer(attention=100, mlp=200, router=0, experts=0, norms=10),) * 2,
    embedding=1000,
    head=0,
    final_norm=20,
    hidden=10,
    vocabulary=100,
    query_width=8,
    key_heads=2,
    head_width=4,
    mlp_width=7,
    experts_per_token=0,
)
SHEET = GPU("toy", "toy", 1e9, 1e9, bf16=1000, fp8=None, bandwidth=100, link=10, network=5, host=20, source="-")
WORK = Workload(
    problems=5,
    prompts=2,
    rows=4,
    question=10,
    context="dag_frontier",
    teacher_prompt=30,
    response=20,
    longest=25,
    judge_prompt=50,
    judge_answer=5,
    probes=6,
    probe_length=3,
    judge_rate=1.0,
    teacher_judges=False,
    on_policy_rate=1.0,
    scores_student=True,
    scores_teacher=True,
    teaches_in_update=False,
    initial_attempts=2,
    sources={},
    missing=None,
)


def setup(is_local=False, num_bytes=2, **changes):
    ones = dict.fromkeys(("nodes", "gpus_per_node", "tp", "pp", "cp", "ep", "etp", "sampler_tp"), 1)
    settings = {"pack_tokens": 100, "recompute": True, "fp32_gradients": True, "fp8": False, "sequence_parallel": False}
    made = replace(read_layout(load_config(CLUSTER)), **(ones | settings | changes))
    return Setup(SIZE, SHEET, made, num_bytes, is_local, rows_at_once=1024, score_tokens=100)


# Four rows are read at 40 x (1200 + 64 x 5) + 4 x 2000 FLOPs, 68.8 s. They then go 25 steps (80,000 B of weights)
# and 80 tokens behind 20 others each (102,400 B of caches; 80 x (2480 + 2000) FLOPs).
ROLLOUT = {"sampler_compute": 68.8 + 358.4, "sampler_request": 4, "sampler_bandwidth": 1824, "sampler_step": 25}
# 200 x (1200 + 64 x 25) + 4 x 2000, then 20 x (1200 + 64 x 52.5 + 2000); 5 x 3200 + 20 x 52.5 x 64 B
JUDGE = {"sampler_compute": 568 + 131.2, "sampler_request": 4, "sampler_bandwidth": 832, "sampler_step": 5}
# 120 tokens x (1200 + 64 x 15 + 2000), in two packs of two layers
STUDENT_PASS = {"score_compute": 499.2, "layer": 4}
# 200 tokens x (1200 + 64 x 25 + 2000), the same
TEACHER_PASS = {"score_compute": 960, "layer": 4}

# On one GPU that vLLM and the trainer share
ONE = {
    "refit": {"refit": 2 * 1640 / 10, "turn": 1},
    "rollout": ROLLOUT,
    "judge": JUDGE,
    "student": STUDENT_PASS | {"host": 2 * (1640 + 1640) / 20, "turn": 1},  # vLLM's weights go, the trainer's come
    "teacher": TEACHER_PASS | {"host": 3 * 2 * 1640 / 20},  # student aside, teacher in, student back
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
    "update": {
        "update_compute": 4 * 499.2,  # of question and response: forward, backward twice, forward again
        "layer": 3 * 4,
        "trainer_bandwidth": 28 * 1640 / 100,  # 4 + 4 + 4 B read, the same written, 4 B of gradient read
        "host": 24 * 1640 / 20,  # 12 B a parameter in, and back
        "turn": 1,
    },
}

# On two nodes of two GPUs, tensor parallel by two within each: two rows each, half the work, and messages.
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
    "update": {
        "update_compute": 4 * 499.2 / 4,
        "layer": 3 * 2,
        "link": 3 * 480,  # as the student's pass, in forward, backward and the second forward
        "network": 6 * 830 / 2 / 5,  # 4 B of a gradient there, 2 B of a weight back, half of them
        "trainer_bandwidth": 28 * 415 / 100,
        "host": 24 * 415 / 20,
        "turn": 1,
    },
}

# The local engine in float32: no turns, and a wait for each layer
LOCAL = {
    "rollout": ROLLOUT | {"sampler_bandwidth": 2 * 1824, "layer": 25 * 2},
    "judge": JUDGE | {"sampler_bandwidth": 2 * 832, "layer": 5 * 2},
    "student": STUDENT_PASS,
    "teacher": TEACHER_PASS,
    "probes": {
        "sampler_compute": 199.68 + 105.408,  # both prefixes are still there
        "sampler_request": 12,
        "sampler_bandwidth": 2 * (76.8 + 574.08),
        "sampler_step": 3,
        "layer": 3 * 2 + 2,
    },
    "update": {"update_compute": 3 * 499.2, "layer": 2 * 4, "trainer_bandwidth": 28 * 1640 / 100},
}
# On a GPU its decoding replays graphs; branches do not
GRAPHED = LOCAL | {
    "rollout": ROLLOUT | {"sampler_bandwidth": 2 * 1824, "graph_layer": 25 * 2},
    "judge": JUDGE | {"sampler_bandwidth": 2 * 832, "graph_layer": 5 * 2},
}
ACROSS = {"nodes": 2, "gpus_per_node": 2, "tp": 2, "sampler_tp": 2}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (setup(), ONE),
        (setup(**ACROSS), FOUR),
        (setup(is_local=True, num_bytes=4, recompute=False), LOCAL),
        (replace(setup(is_local=True, num_bytes=4, recompute=False), replays_graphs=True), GRAPHED),
    ],
    ids=["one", "four", "local", "local_gpu"],
)
def test_every_term_of_a_step_by_hand(made, expected):
    found = step_terms(made, WORK)
    assert found.keys() == expected.keys()
    for stage, terms in expected.items():
        assert found[stage] == pytest.approx(terms), stage


def test_steps_on_the_datas_solutions_take_no_share_of_refit_rollout_and_the_curriculums_judge():
    found = step_terms(setup(), replace(WORK, on_policy_rate=0.25, judge_rate=0.25))
    for stage, terms in ONE.items():
        share = 0.25 if stage in ("refit", "rollout", "judge") else 1
        assert found[stage] == pytest.approx({name: share * amount for name, amount in terms.items()}), stage


def test_a_teacher_that_judges_changes_places_with_the_student_in_vllm():
    work = replace(WORK, teacher_judges=True)
    swap = {"host": 3 * 2 * 1640 / 20}
    assert step_terms(setup(), work)["judge"] == pytest.approx(ONE["judge"] | swap)
    assert before_training(setup(), work)["host"] == pytest.approx(3 * swap["host"])  # three batches
    local = setup(is_local=True, num_bytes=4, recompute=False)
    assert step_terms(local, work)["judge"] == pytest.approx(LOCAL["judge"])  # both are in memory


def test_a_teacher_within_the_update_is_its_pass_and_its_swap():
    found = step_terms(setup(), replace(WORK, scores_teacher=False, teaches_in_update=True))
    assert "teacher" not in found
    added = {"score_compute": 960, "layer": 4 + 12, "host": 492 + 1968}
    assert found["update"] == pytest.approx(ONE["update"] | added)


def test_without_recomputation_a_pass_and_its_messages_are_saved():
    found = step_terms(setup(recompute=False, **ACROSS), WORK)["update"]
    assert found == pytest.approx(FOUR["update"] | {"update_compute": 3 * 499.2 / 4, "layer": 2 * 2, "link": 2 * 480})


def test_the_initial_attempts_are_answered_and_judged_once_a_problem():
    """Two problems twice are as many rows as a step's; five problems are three such batches; one refit for all."""
    once = {name: 3 * (ROLLOUT[name] + JUDGE[name]) for name in ROLLOUT}
    assert before_training(setup(), WORK) == pytest.approx(once | {"refit": 328, "turn": 1})
    assert before_training(setup(), replace(WORK, initial_attempts=0)) == {}


# Rows and tokens of a step

ASSUMED = {
    "problems": 60,
    "response_share": 0.5,
    "question_tokens": 100,
    "solution_tokens": 1000,
    "graph_tokens": 400,
    "instruction_tokens": 30,
    "judge_tokens": 70,
    "trigger_rate": 0.02,
    "characters_per_token": 3.0,
}


def workload(*words):
    words = ("data.train.data_path=none", "policy.generation.max_new_tokens=2000", *words)
    return from_config(load_config(CLUSTER, words), replace(read_constants("nemo_rl"), workload=ASSUMED))


def test_rows_and_tokens_by_hand():
    work = workload("aopsd.num_prompts_per_step=8", "aopsd.num_generations_per_prompt=3", "aopsd.probes.length=5")
    assert (work.problems, work.steps, work.prompts, work.rows) == (60, 8, 8, 24)
    assert (work.question, work.response, work.longest) == (100, 1000, 2000)
    assert work.probes == 0.02 * 1000 * 24 and work.probe_length == 5
    assert (work.judge_prompt, work.judge_answer) == (100 + 400 + 30 + 1000, 70)
    short = workload("aopsd.judge.max_attempt_tokens=600", "aopsd.judge.max_new_tokens=50")
    assert (short.judge_prompt, short.judge_answer) == (100 + 400 + 30 + 600, 50)


@pytest.mark.parametrize(
    ("context", "shown"),
    [
        ("none", 0),
        ("solution", 1000 + 30),
        ("other_problem", 100 + 1000 + 30),
        ("dag_frontier", 200 + 30),
        *((name, 400 + 30) for name in ("dag_full", "plan", "subproblems")),
    ],
)
def test_what_the_teacher_reads_beside_the_question(context, shown):
    assert workload(f"aopsd.context.kind={context}").teacher_prompt == 100 + shown


@pytest.mark.parametrize(
    ("name", "curriculum", "context", "rate"),
    [
        ("pg", "competence", "dag_frontier", 1.0),
        ("pg", "shuffle", "dag_frontier", 1.0),
        ("pg", "competence", "solution", 1.0),
        ("pg", "shuffle", "solution", 0.0),
        ("grpo", "competence", "dag_frontier", 1.0),  # for the curriculum: no teacher reads the frontier
        ("grpo", "shuffle", "dag_frontier", 0.0),
        ("sft", "competence", "dag_frontier", 0.0),  # the curriculum learns nothing of the data's solutions
        ("sft", "shuffle", "dag_frontier", 0.0),
        ("gkd", "competence", "dag_frontier", 1.0),  # the frontier is behind the data's solutions too
        ("gkd", "competence", "solution", 0.5),
        ("gkd", "shuffle", "solution", 0.0),
    ],
)
def test_verdicts_are_planned_where_a_step_asks_for_them(name, curriculum, context, rate):
    words = [f"aopsd.objective.name={name}", f"aopsd.curriculum.name={curriculum}", f"aopsd.context.kind={context}"]
    words += ["aopsd.weighting=uniform", "aopsd.num_generations_per_prompt=2"]
    made = make_plan(load_config(TINY, words), "cpu")
    assert made.work.judge_rate == rate
    whole = step_terms(made.setup, replace(made.work, judge_rate=1.0))["judge"]
    expected = {key: rate * amount for key, amount in whole.items()}
    assert made.terms.get("judge", {}) == (pytest.approx(expected) if rate else {})
    if name in ("sft", "grpo"):
        assert made.work.teacher_prompt == made.work.question
