"""Stock GRPO's dataset, recipe and start against NeMo RL's own classes and Ray, on a CPU."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
import ray
from nemo_rl.algorithms.grpo import MasterConfig
from nemo_rl.algorithms.utils import get_tokenizer
from nemo_rl.data.utils import setup_response_data
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.ray_actor_environment_registry import get_actor_python_env
from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
from nemo_rl.environments.utils import ENV_REGISTRY
from nemo_rl.experience.rollouts import calculate_rewards
from nemo_rl.utils.config import load_config, parse_hydra_overrides, register_omegaconf_resolvers
from omegaconf import OmegaConf

from nemo_aopsd.baselines import environment, run_stock
from nemo_aopsd.baselines.dataset import AOPSDProblems, aopsd_data_processor, to_record
from nemo_aopsd.baselines.environment import read_settings
from nemo_aopsd.data.problems import load_problems, parse_problem
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import student_messages
from nemo_aopsd.models.tokenizer import HFTokenizer
from tests.chat_server import ChatServer
from tests.nemo_rl.test_environment import PROBLEM, attempt, said
from tests.nemo_rl.versions import read

pytestmark = pytest.mark.nemo

REPO = Path(__file__).parents[2]
MODEL = str(REPO / "nemo_aopsd/builtin/model")
TRAIN = str(REPO / "nemo_aopsd/builtin/data/train.jsonl")
RECIPE = REPO / "examples/configs/grpo_progress_reward.yaml"


def test_a_problem_survives_the_way_to_the_environment():
    (problem,) = [p for p in load_problems(TRAIN) if p.id == "train-001-level4"]
    record = json.loads(json.dumps(to_record(problem)))
    back = parse_problem(record, record["where"])
    assert (back.id, back.problem, back.answer, back.where) == (
        problem.id,
        problem.problem,
        problem.answer,
        problem.where,
    )
    assert list(back.dag.nodes(data=True)) == list(problem.dag.nodes(data=True))
    assert list(back.dag.edges) == [("g", "c"), ("c", "h"), ("e", "h")]


def test_the_dataset_refuses_what_it_would_ignore(tmp_path):
    with pytest.raises(UserError, match=r"`prompt_file` is 'cot.txt'"):
        AOPSDProblems(TRAIN, prompt_file="cot.txt")
    with pytest.raises(UserError, match=r"unknown key `prompt`"):
        AOPSDProblems(TRAIN, prompt="tiny")
    bare = {key: value for key, value in PROBLEM.items() if key != "dag"}
    path = str(tmp_path / "some.jsonl")
    Path(path).write_text(json.dumps(PROBLEM) + "\n" + json.dumps(bare | {"id": "q"}))
    with pytest.raises(UserError, match=r"some.jsonl:2: problem 'q' has no `dag`"):
        AOPSDProblems(path)
    assert len(AOPSDProblems(path, require_dag=False).dataset) == 2


def test_the_processor_refuses_a_prompt_that_is_too_long():
    data = AOPSDProblems(TRAIN, prompts="tiny")
    with pytest.raises(UserError, match=r"train.jsonl:1: problem 'train-000-level3': its prompt takes \d+ tokens"):
        aopsd_data_processor(data.dataset[0], None, get_tokenizer({"name": MODEL}), 5, 0)


# The recipe, as run_grpo.py reads it


def recipe(*overrides):
    register_omegaconf_resolvers()
    config = parse_hydra_overrides(load_config(str(RECIPE)), list(overrides))
    return MasterConfig(**OmegaConf.to_container(config, resolve=True))


def tiny():
    """The overrides of the tiny run, as the document has them."""
    text = (REPO / "docs/nemo_rl_environment.md").read_text(encoding="utf-8")
    command = next(block for block in re.findall(r"```sh\n(.+?)```", text, re.DOTALL) if "builtin/model" in block)
    words = command.replace("\\\n", " ").replace("$AOPSD", str(REPO)).split()
    return words[words.index(str(RECIPE)) + 1 :]


def test_the_recipe_is_a_valid_config_of_stock_grpo():
    config = recipe()
    vllm = config.policy["generation"]["vllm_cfg"]
    assert config.policy["generation"]["backend"] == "vllm"
    assert vllm["async_engine"] is True and vllm["expose_http_server"] is True
    assert config.policy["train_global_batch_size"] == read(config.grpo, "num_prompts_per_step") * 16 == 512
    assert read(config.grpo, "val_period") == 0 and config.data["validation"] is None
    found = read_settings(config.env["aopsd_progress"])
    generation = config.policy["generation"]
    assert found.judge.base_urls is None and found.judge.model == config.policy["model_name"]
    assert (found.judge.temperature, found.judge.top_p) == (generation["temperature"], generation["top_p"])
    assert generation["top_k"] is None
    assert config.data["default"]["prompts"] == "default"  # an own key of ours survives NeMo RL's typed blocks


def test_registered_where_nemo_rl_looks():
    assert ENV_REGISTRY["aopsd_progress"]["actor_class_fqn"] == environment.ACTOR
    assert get_actor_python_env(environment.ACTOR) == PY_EXECUTABLES.SYSTEM


def test_run_stock_runs_a_script_as_main_with_everything_registered(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["-m"])
    monkeypatch.setattr("sys.path", ["."])
    (tmp_path / "neighbour.py").write_text("word = 'hello'")
    script = tmp_path / "script.py"
    script.write_text("import sys, neighbour\nif __name__ == '__main__':\n    print(neighbour.word, sys.argv[1:])")
    run_stock.main([str(script), "--config", "x"])
    assert capsys.readouterr().out == "hello ['--config', 'x']\n"
    with pytest.raises(UserError, match=r"no_script.py: expected the path of a script"):
        run_stock.main(["no_script.py"])


# With Ray


@pytest.fixture(scope="module")
def ray_local():
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=True)
    yield
    ray.shutdown()


@ray.remote(num_cpus=0)
class FakeWorker:
    """Stands for VllmAsyncGenerationWorker: only what the discovery asks."""

    def __init__(self, url):
        self.url = url

    async def report_dp_openai_server_base_url(self):
        return self.url


@ray.remote(num_cpus=0)
class FakeSyncWorker:
    def generate(self):
        pass


def assess(actor):
    batch = {
        "message_log": [attempt("x"), attempt("\\boxed{0.5}")],
        "task_name": ["t", "t"],
        "extra_env_info": [PROBLEM, PROBLEM],
    }
    return calculate_rewards(BatchedDataDict(batch), {"t": actor})


@pytest.mark.slow
def test_the_tiny_recipe_through_setup_response_data_and_calculate_rewards(ray_local):
    """No URL is given: the actor finds the servers of workers that are named as NeMo RL names them."""
    config = recipe(*tiny(), "env.aopsd_progress.reward.correct=1.0")
    tokenizer = get_tokenizer(config.policy["tokenizer"])
    dataset, validation, task_to_env, _ = setup_response_data(tokenizer, config.data, config.env)
    assert validation is None and list(task_to_env) == ["aopsd_train"]
    problems = load_problems(TRAIN)
    assert len(dataset) == len(problems)
    datum = dataset[1]
    expected = HFTokenizer(tokenizer, []).render(student_messages(problems[1], "tiny"), None)
    assert datum["message_log"][0]["token_ids"].tolist() == expected and datum["length"] == len(expected)
    assert datum["extra_env_info"]["id"] == problems[1].id and datum["loss_multiplier"] == 1.0

    (actor,) = task_to_env.values()
    with pytest.raises(ray.exceptions.RayTaskError, match="found no Ray actor named vllm_policy-"):
        assess(actor)
    sync = FakeSyncWorker.options(name="vllm_policy-9-9").remote()
    with pytest.raises(ray.exceptions.RayTaskError, match="async_engine=true"):
        assess(actor)
    ray.kill(sync)
    while "vllm_policy-9-9" in ray.util.list_named_actors():
        time.sleep(0.1)
    with ChatServer(said('["a"]')) as one, ChatServer(said('["a"]')) as two:
        urls = {"vllm_policy-0-0": one.url, "vllm_policy-grp1-0": two.url, "vllm_policy-grp1-1": None}
        workers = [FakeWorker.options(name=name).remote(url) for name, url in urls.items()]
        workers.append(FakeWorker.options(name="lm_policy-0-0").remote("http://not.this/v1"))
        result = assess(actor)
        assert len(one.bodies) == len(two.bodies) == 1
        assert result.rewards.tolist() == [0.25, 1.25] and result.terminateds.tolist() == [1, 1]
        # Its node lost, it starts again wherever there is room, even without a CPU, and the step is done again.
        os.kill(ray.get(actor.__ray_call__.remote(lambda self: os.getpid())), signal.SIGKILL)
        assert assess(actor).rewards.tolist() == [0.25, 1.25]
        options = environment.ProgressJudgeEnvironment._default_options
        assert (options["num_cpus"], options["max_restarts"], options["max_task_retries"]) == (0, -1, -1)
