"""What the Megatron worker adds to NeMo RL's, on a model in Megatron's own data-parallel wrapper. Two CPU processes."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing as mp

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
