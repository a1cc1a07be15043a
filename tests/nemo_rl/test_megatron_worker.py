"""What the Megatron worker adds to NeMo RL's, on a model in Megatron's own data-parallel wrapper. Two CPU processes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing as mp

from nemo_aopsd.clock import Clock
from nemo_aopsd.cluster import SPARE

pytest.importorskip("megatron.core")


def _updated_on_two_ranks(rank, store, results):
    """Each rank has the update of its own share only, as the distributed optimizer leaves it; what is streamed then?"""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.transformer_config import TransformerConfig
    from nemo_rl.models.policy.workers.megatron_policy_worker import MegatronPolicyWorkerImpl

    from nemo_aopsd.engines.nemo_rl.megatron_worker import TeacherMegatronWorkerImpl

    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.cuda.current_device = lambda: "cpu"
    everyone, alone = torch.distributed.group.WORLD, [torch.distributed.new_group([i]) for i in range(2)][rank]
    groups = ProcessGroupCollection(
        **dict.fromkeys(("dp", "dp_cp", "intra_dp_cp", "expt_dp", "intra_expt_dp"), everyone),
        **dict.fromkeys(("tp", "pp", "ep", "cp", "mp"), alone),
    )
    settings = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True, bucket_size=None
    )
    shape = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, use_cpu_initialization=True)
    model = DistributedDataParallel(shape, settings, torch.nn.Linear(64, 64, bias=False), pg_collection=groups)
    whole = model.buffers[0].param_data
    mine = whole.view(2, -1)[rank]
    mine.fill_(rank + 1.0)  # the optimizer's step on this rank; the other half is old

    worker = object.__new__(TeacherMegatronWorkerImpl)
    worker.model, worker.optimizer = model, None
    worker._uses_mxfp8_overlap_shared_param_buffer = lambda: False
    streamed = []
    MegatronPolicyWorkerImpl.stream_weights_via_ipc_zmq = lambda self, **kwargs: streamed.append(whole.clone())
    assert worker._forward_pre_hook_enabled()
    worker.stream_weights_via_ipc_zmq(buffer_size_bytes=1)
    assert worker._forward_pre_hook_enabled()  # as the next update wants them
    results[rank] = [half.unique().tolist() for half in streamed[0].view(2, -1)]
    torch.distributed.destroy_process_group()


def test_a_refit_sends_the_whole_update(tmp_path):
    results = mp.Manager().dict()
    mp.spawn(_updated_on_two_ranks, (tmp_path / "store", results), nprocs=2)
    assert dict(results) == {rank: [[1.0], [2.0]] for rank in range(2)}


importing_megatron_warns = pytest.mark.filterwarnings("ignore")


class OnGpu(torch.Tensor):
    is_cuda = True


SHARE, STUDENT, WEIGHTS = 50 * 10**9, 10**9, 100  # bytes of vLLM's share, of its weights and of the trainer's


class Card:
    """A GPU of 100 GB with a worker whose weights are 100 bytes. `moves` are those of the optimizer."""

    def __init__(self, monkeypatch, utilization=0.5):
        from nemo_aopsd.engines.nemo_rl import megatron_worker

        self.free, self.looks, self.moves, self.told = 0, 0, [], []
        monkeypatch.setattr(megatron_worker, "print", self.told.append, raising=False)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "mem_get_info", self._look)
        monkeypatch.setattr(megatron_worker, "move_states", lambda states, device, kept: self.moves.append(device))
        self.weights = torch.empty(WEIGHTS, dtype=torch.uint8)
        self.worker = worker = object.__new__(megatron_worker.TeacherMegatronWorkerImpl)
        worker.clock = Clock()
        worker.cfg = {"generation": {"vllm_cfg": {"gpu_memory_utilization": utilization}}}
        buffers = [SimpleNamespace(param_data=data) for data in (self.weights, None)]
        worker.model = SimpleNamespace(buffers=buffers[:1], expert_parallel_buffers=buffers[1:])
        state = {"exp_avg": torch.ones(2).as_subclass(OnGpu), "step": 3}
        worker.optimizer = SimpleNamespace(state={"weight": state})

    def _look(self):
        self.looks += 1
        return self.free, 100 * 10**9

    def move(self, *devices):
        """Those of the moves that are made."""
        self.moves.clear()
        for device in devices:
            self.worker.move_optimizer(device)
        return self.moves


@importing_megatron_warns
@pytest.mark.parametrize(
    ("utilization", "are_gone", "needed"),
    [
        (0.5, False, SHARE - WEIGHTS),  # before a refit: the weights leave after it
        (0.5, True, SHARE),  # vLLM wakes without one
        (0.0, False, 0),  # a refit needs the weights and vLLM's at once, however little vLLM takes behind it
    ],
)
def test_the_optimizer_stays_where_vllm_and_its_student_leave_room(monkeypatch, utilization, are_gone, needed):
    for more, made in ((0, []), (-1, ["cpu"])):
        card = Card(monkeypatch, utilization)
        if are_gone:
            card.weights.untyped_storage().resize_(0)
        card.worker.keep_optimizer(STUDENT)
        card.free = SPARE + STUDENT + needed + more
        assert card.move("cpu") == made
        card.free = 0 if more == 0 else 10**12
        assert card.move("cpu", "cuda", "cpu") == [*made, "cuda", *made] and card.looks == 1  # decided once
        (line,) = card.told
        assert line.startswith("aopsd.keep_optimizer_on_gpu: the state " + ("moves" if made else "stays"))


@importing_megatron_warns
def test_an_empty_optimizer_decides_nothing_and_one_that_nobody_keeps_moves(monkeypatch):
    card = Card(monkeypatch)
    card.free = 10**12
    assert card.move("cpu", "cuda") == ["cpu", "cuda"] and card.looks == 0
    card = Card(monkeypatch)
    card.worker.keep_optimizer(STUDENT)
    full, card.worker.optimizer.state = card.worker.optimizer.state, {}
    card.move("cpu")  # before the first update, with little room
    card.worker.optimizer.state, card.free = full, 10**12
    assert card.move("cpu") == []
