"""What a training worker does beside NeMo RL's: the optimizer's place in host memory, and what collections cost."""

import gc
from types import SimpleNamespace

import torch

from nemo_aopsd import profiling
from nemo_aopsd.engines.nemo_rl.teacher_mixin import TeacherMixin, move_states


class OnGpu(torch.Tensor):
    is_cuda = True


def test_the_optimizer_waits_in_page_locked_memory_that_is_kept(monkeypatch):
    locked = []
    cudart = SimpleNamespace(cudaHostRegister=lambda start, size, flags: locked.append((start, size)))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_, **__: self.clone().as_subclass(OnGpu))
    values = {"exp_avg": torch.randn(3, 1000), "master": torch.randn(7).bfloat16(), "empty": torch.empty(0)}
    state = {name: value.clone().as_subclass(OnGpu) for name, value in values.items()} | {"step": 4}
    kept, places = {}, []
    for _ in range(2):
        move_states([state], "cpu", kept)
        assert not any(state[name].is_cuda for name in values)
        places.append({name: state[name].data_ptr() for name in values})
        move_states([state], "cpu", kept)  # as before a refit and again after it
        move_states([state], "cuda", kept)
        for name, value in values.items():
            assert state[name].is_cuda and torch.equal(state[name], value) and state[name].dtype == value.dtype
            assert state[name].data_ptr() != places[-1][name] or not len(value)
            state[name] += 1  # an update, which must not reach what is kept
            values[name] = value + 1
    assert places[0] == places[1]
    assert [size for _, size in locked] == [12288, 4096] and state["step"] == 4
    for (start, size), name in zip(locked, values, strict=False):
        assert start % 4096 == 0 and start == places[0][name] and size >= values[name].nbytes


def test_collections_are_timed_and_a_frozen_heap_is_left_out():
    worker, before = TeacherMixin(), gc.get_freeze_count()
    callbacks = list(gc.callbacks)
    try:
        assert worker.take_seconds() == {}
        worker.freeze_heap()
        assert gc.get_freeze_count() > before + 1000
        assert worker.take_seconds()["collect"] > 0
    finally:
        gc.unfreeze()
        gc.callbacks[:] = callbacks


def test_updates_of_a_worker_are_profiled(tmp_path, monkeypatch):
    class Base:
        def train(self, data, *, loss_fn):
            return {"loss": loss_fn(data)}

    class Worker(TeacherMixin, Base):
        pass

    monkeypatch.setenv("AOPSD_PROFILE", str(tmp_path))
    monkeypatch.setattr(profiling, "_calls", profiling.Counter())
    for _ in range(3):
        assert Worker().train(torch.ones(3), loss_fn=torch.sum) == {"loss": 3}
    assert "aten::sum" in (tmp_path / "update_rank0.txt").read_text()
