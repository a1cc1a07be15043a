"""The judge environment and a driver on two Ray nodes, one of which is killed: the step goes on, or a clear error."""

import copy
import time

import pytest
import ray
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.environments.utils import create_env
from nemo_rl.experience.rollouts import calculate_rewards
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nemo_aopsd.baselines.environment import ENV_NAME, ProgressJudgeEnvironment
from nemo_aopsd.engines.nemo_rl.cluster import cluster_errors
from nemo_aopsd.errors import UserError
from tests.chat_server import ChatServer, Reply
from tests.nemo_rl.ray_nodes import HEAD, OTHER, RayNodes
from tests.nemo_rl.test_environment import PROBLEM, attempt, said, settings

pytestmark = [pytest.mark.nemo, pytest.mark.slow]
LIMIT = 120  # seconds


def on(nodes, address, soft=False):
    return NodeAffinitySchedulingStrategy(nodes.alive()[address], soft=soft)


def reward(actor):
    """Through NeMo RL's own loop, and the seconds that it took."""
    batch = {"message_log": [attempt("x")], "task_name": ["t"], "extra_env_info": [copy.deepcopy(PROBLEM)]}
    start = time.monotonic()
    rewards = calculate_rewards(BatchedDataDict(batch), {"t": actor}).rewards.tolist()
    return rewards, time.monotonic() - start


def node_of(actor):
    return ray.get(actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id()))


def start_on_other(nodes, block):
    """The environment where it may move from; a node that has just joined is passed over until others know of it."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        strategy = on(nodes, OTHER, soft=True)
        actor = ProgressJudgeEnvironment.options(scheduling_strategy=strategy).remote(block)
        if node_of(actor) == nodes.alive()[OTHER]:
            return actor
        ray.kill(actor)
    raise AssertionError("the environment never started on the other node")


@ray.remote(num_cpus=0)
class Worker:
    """Anything that lives on a node: where it is, a judge's server, work that does not end."""

    def serve(self):
        self.server = ChatServer(said('["a"]'))
        self.server.__enter__()
        return self.server.url

    def work(self, seconds):
        time.sleep(seconds)


def test_the_environment_moves_to_the_other_node_and_the_step_is_done_again():
    asked = []

    def answer(body, headers):
        asked.append(time.monotonic())
        return Reply('["a"]', delay=2 * LIMIT if len(asked) == 2 else 0)

    with ChatServer(answer) as server, RayNodes() as nodes:
        actor = start_on_other(nodes, settings(server.url))
        assert reward(actor)[0] == [0.25]
        in_flight = actor.step.remote([attempt("x")], [copy.deepcopy(PROBLEM)])
        while len(asked) < 2:
            time.sleep(0.05)
        nodes.kill(OTHER)
        assert ray.get(in_flight, timeout=LIMIT).rewards.tolist() == [0.25]
        assert len(asked) == 3 and node_of(actor) == nodes.alive()[HEAD]
        assert reward(actor)[0] == [0.25]


def test_nemo_rl_makes_the_environment_without_claiming_a_cpu():
    """A cluster whose CPUs are all taken would otherwise wait for room for ever."""
    with ChatServer(said('["a"]')) as server, RayNodes():
        busy = [Worker.options(num_cpus=2).remote() for _ in range(2)]
        ray.get([worker.work.remote(0) for worker in busy])
        assert ray.available_resources().get("CPU", 0) == 0
        actor = create_env(ENV_NAME, settings(server.url))
        assert ray.get(actor.step.remote([attempt("x")], [PROBLEM]), timeout=LIMIT).rewards.tolist() == [0.25]


def test_a_judge_whose_node_is_lost_is_named():
    with RayNodes() as nodes:
        judge = Worker.options(scheduling_strategy=on(nodes, OTHER)).remote()
        url = ray.get(judge.serve.remote())
        actor = ProgressJudgeEnvironment.options(scheduling_strategy=on(nodes, HEAD)).remote(settings(url))
        assert reward(actor)[0] == [0.25]
        nodes.kill(OTHER)
        start = time.monotonic()
        with pytest.raises(ray.exceptions.RayTaskError) as error:
            reward(actor)
        assert time.monotonic() - start < LIMIT
        assert url in str(error.value) and "UserError" in str(error.value)


def test_a_worker_whose_node_is_lost_ends_the_run_with_one_message():
    with RayNodes() as nodes:
        worker = Worker.options(scheduling_strategy=on(nodes, OTHER)).remote()
        ray.get(worker.work.remote(0))
        working = worker.work.remote(1000)
        start = time.monotonic()
        nodes.kill(OTHER)
        with pytest.raises(UserError, match=r"a worker died: .*go on with --resume"), cluster_errors():
            ray.get(working)
        assert time.monotonic() - start < LIMIT
