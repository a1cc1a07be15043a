"""Trainer and vLLM of one run meet at one address; those of another run on the same GPU at another."""

import warnings
from types import SimpleNamespace

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from nemo_aopsd.engines.nemo_rl.dtensor_worker import TeacherDTensorWorkerImpl
    from nemo_aopsd.engines.nemo_rl.megatron_worker import TeacherMegatronWorkerImpl
    from nemo_aopsd.engines.nemo_rl.vllm_extension import WeightBankExtension

SIDES = (TeacherMegatronWorkerImpl, TeacherDTensorWorkerImpl, WeightBankExtension)


def addresses(monkeypatch, raylet):
    monkeypatch.setenv("RAY_RAYLET_PID", raylet)
    worker = SimpleNamespace(report_device_id=lambda: "GPU-1")
    return {side.get_zmq_address(worker) for side in SIDES}


def test_one_address_a_run(monkeypatch):
    first, second = addresses(monkeypatch, "1"), addresses(monkeypatch, "2")
    assert len(first) == len(second) == 1
    assert first != second
