"""A judge with a model of its own: other weights and another tokenizer than the student's."""

import json
import random
import shutil

import pytest
from safetensors.torch import load_file, save_file

from examples.builtin import traces, world
from nemo_aopsd.config.load import load_config
from nemo_aopsd.config.shipped import FOLDER
from nemo_aopsd.data.problems import parse_problem
from nemo_aopsd.engines import local
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.step import judge_rollouts
from tests import REPO

MODEL = REPO / "nemo_aopsd/builtin/model"


def load(*overrides):
    return load_config(FOLDER / "demo.yaml", overrides)


def renumbered(folder):
    """The built-in model with two tokens that attempts use in each other's place: the same text, other ids."""
    shutil.copytree(MODEL, folder)
    tokenizer, weights = json.loads((folder / "tokenizer.json").read_text()), load_file(folder / "model.safetensors")
    ids, rows = tokenizer["model"]["vocab"], weights["model.embed_tokens.weight"]
    one, two = ids[" 1"], ids[" 2"]
    ids[" 1"], ids[" 2"] = two, one
    rows[[one, two]] = rows[[two, one]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_another_model_judges_in_its_own_tokens_and_does_not_learn(tmp_path):
    own, students = load(f"aopsd.judge.model={renumbered(tmp_path / 'judge')}"), load()
    engine = local.build(own)
    model, tokenizer = engine.judge
    rng, puzzles, problems = random.Random(3), [], []
    for number in range(6):
        puzzles.append(world.sample_puzzle(rng, 4))
        problems.append(parse_problem(world.problem_record(puzzles[-1], f"p{number}"), "test"))
    attempts = ["".join(traces.attempt(rng, puzzle, traces.Manner(slip=0.2)).pieces) for puzzle in puzzles]
    responses = [engine.tokenizer.encode(attempt) for attempt in attempts]
    assert [tokenizer.encode(attempt) for attempt in attempts] != responses
    found = judge_rollouts(problems, responses, engine, own, seed=1)
    expected = judge_rollouts(problems, responses, engine, students, seed=1)
    assert found == expected and len({verdict.judged for verdict in found}) > 1
    trained = {id(parameter) for parameter in engine.student.network.causal_lm.parameters()}
    assert not trained & {id(parameter) for parameter in model.network.causal_lm.parameters()}
    assert local.build(students).judge is None


def test_a_judge_that_is_not_there_or_on_nemo_rl_is_refused():
    with pytest.raises(UserError, match=r"aopsd\.judge\.model=no/model: no such model"):
        local.check(load("aopsd.judge.model=no/model"))
    with pytest.raises(UserError, match=r"`aopsd\.judge\.model` must be student or teacher with aopsd\.engine=nemo_rl"):
        load_config(REPO / "examples/configs/aopsd_qwen3_8b.yaml", ["aopsd.judge.model=models/judge"])
