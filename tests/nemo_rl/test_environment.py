"""The environment and the dataset against NeMo RL's own classes, on a CPU; the judge is a small server of the test."""

import asyncio
import copy
import json
import re
import socket
import threading
import time
from pathlib import Path

import pytest
import ray
import torch
from nemo_rl.algorithms.grpo import MasterConfig
from nemo_rl.algorithms.utils import get_tokenizer
from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message
from nemo_rl.data.utils import setup_response_data
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.ray_actor_environment_registry import get_actor_python_env
from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn
from nemo_rl.environments.utils import ENV_REGISTRY
from nemo_rl.experience.rollouts import calculate_rewards
from nemo_rl.utils.config import load_config, parse_hydra_overrides, register_omegaconf_resolvers
from omegaconf import OmegaConf

from nemo_aopsd.baselines import environment, run_stock
from nemo_aopsd.baselines.dataset import AOPSDProblems, aopsd_data_processor, to_record
from nemo_aopsd.baselines.environment import ProgressJudgeEnvironmentImpl, read_settings
from nemo_aopsd.chat import client
from nemo_aopsd.data.problems import load_problems, parse_problem
from nemo_aopsd.errors import UserError
from nemo_aopsd.method.context import student_messages
from nemo_aopsd.models.tokenizer import HFTokenizer
from tests.chat_server import ChatServer, Reply

pytestmark = pytest.mark.nemo

REPO = Path(__file__).parents[2]
MODEL = str(REPO / "nemo_aopsd/builtin/model")
TRAIN = str(REPO / "nemo_aopsd/builtin/data/train.jsonl")
RECIPE = REPO / "examples/configs/grpo_progress_reward.yaml"

# a -> b -> c and d apart: 4 checkpoints
PROBLEM = {
    "id": "p",
    "problem": "What is half of one?",
    "answer": "\\frac{1}{2}",
    "where": "problems.jsonl:1",
    "dag": {
        "nodes": [{"id": name, "statement": f"statement {name}"} for name in "abcd"],
        "edges": [["a", "b"], ["b", "c"]],
    },
}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(client, "_FIRST_PAUSE", 0.001)


def said(text):
    return lambda body, headers: Reply(text)


def attempt(text):
    return [{"role": "user", "content": "What is half of one?"}, {"role": "assistant", "content": text}]


def settings(*urls, reward=None, **judge):
    return {"reward": reward or {}, "judge": {"base_urls": list(urls), "model": "m"} | judge}


def run(config, attempts=("x",), info=PROBLEM, steps=1):
    """(EnvironmentReturn, environment) after that many steps on one event loop."""

    async def main():
        tested = ProgressJudgeEnvironmentImpl(config)
        try:
            for _ in range(steps):
                result = await tested.step(list(map(attempt, attempts)), [copy.deepcopy(info) for _ in attempts])
            return result, tested
        finally:
            await tested.shutdown()

    return asyncio.run(main())


def outcome(config, text="x", info=PROBLEM):
    result, tested = run(config, [text], info)
    return result.metadata[0]["aopsd"], tested


# Reward and contract


def test_what_a_step_returns_is_what_nemo_rl_takes():
    with ChatServer(said('["a"]')) as server:
        result, _ = run(settings(server.url), ["x", "so \\boxed{7}", "z"])
    assert isinstance(result, EnvironmentReturn) and issubclass(ProgressJudgeEnvironmentImpl, EnvironmentInterface)
    assert result.rewards.dtype == torch.float32 and result.rewards.tolist() == [0.25] * 3
    assert result.terminateds.tolist() == [1, 1, 1]
    assert result.observations == [{"role": "environment", "content": ""}] * 3
    assert result.next_stop_strings == [None] * 3 and result.answers == [None, "7", None]
    assert [info["id"] for info in result.metadata] == ["p"] * 3


@pytest.mark.parametrize(
    ("verdict", "reached", "reward"),
    [
        ('["a", "b", "c", "d"]', "abcd", 1.0),
        ('["a", "c", "d"]', "ad", 0.5),  # c without its prerequisite b does not count
        ('["b", "c"]', "", 0.0),
        ("[]", "", 0.0),
    ],
)
def test_the_reward_is_the_share_of_the_closed_set(verdict, reached, reward):
    with ChatServer(said(verdict)) as server:
        found, _ = outcome(settings(server.url))
    assert (found["reward"], found["reached"], found["failed"]) == (reward, list(reached), False)


def test_each_attempt_gets_its_own_verdict_in_order():
    def answer(body, headers):
        shown = body["messages"][-1]["content"]
        first = "first attempt" in shown
        return Reply('["a"]' if first else '["a", "b", "d"]', delay=0.3 if first else 0)  # the first comes back last

    with ChatServer(answer) as server:
        result, _ = run(settings(server.url), ["first attempt", "second"])
    assert result.rewards.tolist() == [0.25, 0.75]


def test_the_request_is_the_judges_prompt_with_the_policys_sampling():
    with ChatServer(said("[]")) as server:
        run(settings(server.url, temperature=0.7, top_p=0.9, max_new_tokens=33, chat_template_kwargs={"a": 1}), ["why"])
    (body,) = server.bodies
    (message,) = body.pop("messages")
    options = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 33, "chat_template_kwargs": {"a": 1}}
    assert body == {"model": "m"} | options
    assert "[c] statement c" in message["content"] and "why" in message["content"]


@pytest.mark.parametrize(
    ("text", "grade", "correct"),
    [("\\boxed{0.5}", "correct", True), ("\\boxed{2}", "wrong", False), ("0.5", "no_answer", False)],
)
def test_correctness_off_the_main_thread_as_in_a_ray_actor(text, grade, correct):
    """`\\frac{1}{2}` against 0.5 needs math-verify, which refuses any thread but the main one. No judge is asked."""
    found = {}
    config = settings("http://127.0.0.1:1/v1", reward={"progress": 0.0, "correct": 1.0})
    thread = threading.Thread(target=lambda: found.update(zip(("outcome", "env"), outcome(config, text), strict=True)))
    thread.start()
    thread.join(100)
    assert found["outcome"] == {"reward": float(correct), "correct": correct, "grade": grade}
    assert found["env"].counters["correct"] == correct


def test_a_weighted_sum():
    with ChatServer(said('["a", "d"]')) as server:
        found, _ = outcome(settings(server.url, reward={"progress": 0.5, "correct": 2.0}), "\\boxed{\\frac{1}{2}}")
    assert found["reward"] == 0.5 * 0.5 + 2.0


# Bad judges


@pytest.mark.parametrize("text", ["garbage", '["nowhere"]', '["a"', "", None])
def test_an_unreadable_verdict_is_asked_again_then_counted_and_shown(text, capsys):
    with ChatServer(said(text)) as server:
        result, tested = run(settings(server.url, num_retries=2))
        assert len(server.bodies) == 3
    assert result.rewards.tolist() == [0.0] and result.metadata[0]["aopsd"]["failed"] is True
    batch = BatchedDataDict({"total_reward": result.rewards})
    same, metrics = tested.global_post_process_and_metrics(batch)
    assert same is batch and metrics["judge_failed"] == 1 and metrics["judge_failed_share"] == 1.0
    assert "1 of 1 verdicts so far cannot be read" in capsys.readouterr().out


def test_a_second_answer_that_can_be_read_counts():
    replies = iter([Reply("garbage"), Reply('["d"]')])
    with ChatServer(lambda body, headers: next(replies)) as server:
        found, tested = outcome(settings(server.url))
    assert (found["reward"], found["failed"], tested.counters["judge_failed"]) == (0.25, False, 0)


def test_failures_are_printed_at_each_doubling(capsys):
    with ChatServer(said("garbage")) as server:
        run(settings(server.url, num_retries=0), ["x"] * 5)
    assert capsys.readouterr().out.count("cannot be read") == 3  # the 1st, 2nd and 4th


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_nobody_listens():
    url = f"http://127.0.0.1:{unused_port()}/v1"
    with pytest.raises(UserError, match=r"no answer from the judge: ClientConnectorError.* \(try 4\)") as raised:
        run(settings(url))
    assert url in str(raised.value)


def test_a_host_that_never_accepts():
    """A full backlog: the kernel drops what comes on top, as a firewall does."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        with pytest.raises(UserError, match=r"ConnectionTimeoutError"):
            run(settings(url, connect_timeout=0.1))
        for one in waiting:
            one.close()


def test_a_judge_that_hangs():
    with (
        ChatServer(lambda body, headers: Reply("[]", delay=30)) as server,
        pytest.raises(UserError, match=r"took longer than 0.2 seconds.*\(try 1\)") as raised,
    ):
        run(settings(server.url, timeout=0.2))
    assert server.url in str(raised.value) and len(server.bodies) == 1


def test_a_server_that_goes_on_failing_says_what_to_look_at():
    with (
        ChatServer(lambda body, headers: Reply(status=500, body=b"Internal Server Error")) as server,
        pytest.raises(UserError, match=r"HTTP 500: Internal Server Error.*temperature and top_p of policy.generation"),
    ):
        run(settings(server.url))


def test_a_refusal_is_not_repeated():
    with ChatServer(lambda body, headers: Reply(status=404, body=b'{"message": "no model m"}')) as server:
        with pytest.raises(UserError, match=r"HTTP 404: .*no model m.*model 'm'"):
            run(settings(server.url))
        assert len(server.bodies) == 1


def room_for(chars, refuse):
    def answer(body, headers):
        length = len(body["messages"][0]["content"])
        return Reply('["d"]') if length <= chars else refuse

    return answer


@pytest.mark.parametrize(
    "refusal",
    [
        Reply(status=400, body=b'{"error": {"message": "This model\'s maximum context length is 9 tokens"}}'),
        Reply('["a", "b"]', finish_reason="length", usage={"prompt_tokens": 500, "completion_tokens": 3}),
    ],
)
def test_an_attempt_for_which_the_server_has_no_room_loses_its_middle(refusal):
    with ChatServer(room_for(2000, refusal)) as server:
        found, tested = outcome(settings(server.url), "start " + "x" * 5000 + " end")
    last = server.bodies[-1]["messages"][0]["content"]
    assert (found["reward"], found["cut"], tested.counters["attempts_cut"]) == (0.25, True, 1)
    assert "start x" in last and "x end" in last and "left out" in last


def test_no_room_even_without_an_attempt():
    refusal = Reply(status=400, body=b"maximum context length")
    with (
        ChatServer(room_for(10, refusal)) as server,
        pytest.raises(UserError, match=r"problems.jsonl:1: problem 'p'.*no room"),
    ):
        run(settings(server.url))


def test_requests_go_round_the_servers_and_never_exceed_the_limit():
    def answer(body, headers):
        return Reply("[]", delay=0.05)

    with ChatServer(answer) as one, ChatServer(answer) as two:
        run(settings(one.url, two.url, concurrency=3), ["x"] * 12)
        assert len(one.bodies) == len(two.bodies) == 6
        assert one.most_at_a_time + two.most_at_a_time <= 4 and one.most_at_a_time <= 3


def test_the_key_of_an_external_judge(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "hush")
    with ChatServer(said("[]")) as server:
        run(settings(server.url, api_key_env="JUDGE_KEY"))
    assert server.headers[0]["authorization"] == "Bearer hush"
    with pytest.raises(UserError, match=r"OTHER_KEY is not set"):
        run(settings("http://127.0.0.1:1/v1", api_key_env="OTHER_KEY"))


def test_a_key_that_no_header_can_carry_and_one_with_a_line_break(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "hush\n")
    with ChatServer(said("[]")) as server:
        run(settings(f" {server.url}\n", api_key_env="JUDGE_KEY"))
        assert server.headers[0]["authorization"] == "Bearer hush"
        monkeypatch.setenv("JUDGE_KEY", "hush\u00e4hush")
        with pytest.raises(UserError, match=r"judge.api_key_env: .* JUDGE_KEY is not ASCII") as raised:
            run(settings(server.url, api_key_env="JUDGE_KEY"))
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("status", [200, 401, 500])
def test_key_and_password_of_a_url_are_sent_and_never_shown(monkeypatch, status):
    """The server repeats its header in whatever it answers."""
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")

    def echo(body, headers):
        return Reply(status=status, body=f"no: {headers['authorization']} sk-very-secret hush-hush".encode())

    with ChatServer(echo) as server, pytest.raises(UserError, match=r"no: .*\[redacted\]") as raised:
        run(settings(server.url.replace("//", "//me:hush-hush@"), api_key_env="JUDGE_KEY"))
    sent = server.headers[0]["authorization"]
    assert sent == "Basic bWU6aHVzaC1odXNo"
    assert not any(secret in str(raised.value) for secret in ("sk-very", "hush-hush", sent))


def test_a_url_with_a_blank_inside_is_refused_by_its_option():
    with pytest.raises(UserError, match=r"env.aopsd_progress.judge.base_urls: a blank"):
        run(settings("http://127.0.0.1 :8000/v1"))


# Settings


def test_bad_settings_are_refused():
    with pytest.raises(UserError, match=r"env.aopsd_progress: .*tempreature.*judge.temperature"):
        read_settings({"judge": {"tempreature": 1}})
    with pytest.raises(UserError, match=r"judge.concurrency"):
        read_settings({"judge": {"concurrency": "many"}})
    with pytest.raises(UserError, match=r"both weights are 0"):
        read_settings({"reward": {"progress": 0.0}})


def test_a_problem_without_a_dag_is_named():
    info = {key: value for key, value in PROBLEM.items() if key != "dag"}
    with pytest.raises(UserError, match=r"problems.jsonl:1: problem 'p' has no `dag`"):
        run(settings("http://127.0.0.1:1/v1"), info=info)


# Dataset and processor


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


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def test_the_dataset_refuses_what_it_would_ignore(tmp_path):
    with pytest.raises(UserError, match=r"`prompt_file` is 'cot.txt'"):
        AOPSDProblems(TRAIN, prompt_file="cot.txt")
    with pytest.raises(UserError, match=r"unknown key `prompt`"):
        AOPSDProblems(TRAIN, prompt="tiny")
    bare = {key: value for key, value in PROBLEM.items() if key != "dag"}
    path = write(tmp_path / "some.jsonl", PROBLEM, bare | {"id": "q"})
    with pytest.raises(UserError, match=r"some.jsonl:2: problem 'q' has no `dag`"):
        AOPSDProblems(path)
    assert len(AOPSDProblems(path, require_dag=False).dataset) == 2


def test_the_processor_refuses_a_prompt_that_is_too_long():
    data = AOPSDProblems(TRAIN, prompts="tiny")
    with pytest.raises(UserError, match=r"train.jsonl:1: problem 'train-000-level3': its prompt takes \d+ tokens"):
        aopsd_data_processor(data.dataset[0], None, get_tokenizer({"name": MODEL}), 5, 0)


def test_an_empty_observation_adds_no_token_and_keeps_ids_whole():
    tokenizer = get_tokenizer({"name": MODEL})
    empty = tokenizer("", return_tensors="pt", add_special_tokens=False).input_ids[0]
    log = [{"role": "user", "content": "a", "token_ids": torch.tensor([5, 6])}]
    log += [{"role": "environment", "content": "", "token_ids": empty}]
    flat, lengths = batched_message_log_to_flat_message([log], pad_value_dict={"token_ids": 0})
    assert flat["token_ids"].tolist() == [[5, 6]] and not flat["token_ids"].is_floating_point()
    assert lengths.tolist() == [2]


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
    assert config.policy["train_global_batch_size"] == config.grpo["num_prompts_per_step"] * 16 == 512
    assert config.grpo["val_period"] == 0 and config.data["validation"] is None
    found = read_settings(config.env["aopsd_progress"])
    generation = config.policy["generation"]
    assert found.judge.base_urls is None and found.judge.model == config.policy["model_name"]
    assert (found.judge.temperature, found.judge.top_p) == (generation["temperature"], generation["top_p"])
    assert generation["top_k"] is None
    assert config.data["default"]["prompts"] == "default"  # an own key of ours survives NeMo RL's typed blocks


def test_the_tiny_run_of_the_document_is_one_for_the_embedded_model():
    config = recipe(*tiny())
    assert config.policy["model_name"] == MODEL and config.grpo["max_num_steps"] == 2
    assert config.policy["train_global_batch_size"] == 64 and config.cluster["gpus_per_node"] == 1
    assert read_settings(config.env["aopsd_progress"]).prompts == "tiny"


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
        ray.get(actor.shutdown.remote())
    assert result.rewards.tolist() == [0.25, 1.25] and result.terminateds.tolist() == [1, 1]
    assert result.observations[0]["content"] == ""
