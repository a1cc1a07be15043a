"""Where the student waits while vLLM's workers show the teacher."""

from types import SimpleNamespace

import pytest
import torch

from nemo_aopsd.cluster import SPARE
from nemo_aopsd.engines.nemo_rl.vllm_extension import WeightBankExtension

NUM_BYTES = 4 * (3 * 2 + 2)


@pytest.fixture
def extension(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    extension = object.__new__(WeightBankExtension)
    model = torch.nn.Linear(3, 2)
    extension.model_runner = SimpleNamespace(model=model)
    extension.bank_teacher()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    return extension


def weights(extension):
    return [weight.detach().clone() for weight in extension.model_runner.model.parameters()]


@pytest.mark.parametrize(
    ("more", "beside_trainer", "on_gpu"), [(0, False, True), (-1, False, False), (10 * NUM_BYTES, True, False)]
)
def test_the_student_waits_on_the_gpu_where_that_has_room(extension, monkeypatch, more, beside_trainer, on_gpu):
    freed = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (SPARE + NUM_BYTES + more, 10**12))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(1))
    student, teacher = weights(extension), [weight - 1 for weight in weights(extension)]
    for _ in range(2):
        extension.show_teacher(beside_trainer)
        assert extension.student_on_gpu is on_gpu
        torch.testing.assert_close(weights(extension), teacher)
        kept = dict(extension.student_bank)
        extension.show_student()
        assert all(map(torch.equal, weights(extension), student))
        assert extension.student_bank == ({} if on_gpu else kept)  # pinned memory is used again
    assert len(freed) == 2 * on_gpu
    extension.show_teacher(beside_trainer)
    extension.let_student_go()  # before an update, which makes it stale
    assert (extension.student_bank == {}) is on_gpu and not extension.student_on_gpu
