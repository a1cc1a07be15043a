"""What evaluation through vLLM alone asks of vLLM 0.20.0's own classes; no GPU, no model."""

import inspect
import os

import pytest
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.platforms.interface import Platform
from vllm.sampling_params import RequestOutputKind

from nemo_aopsd.engines.vllm_only.worker import Gpu, Request, open_engine, sampling_params, show
from nemo_aopsd.files import derive_seed
from nemo_aopsd.types import Sampling


def test_sampling_parameters_are_the_evaluations_and_nothing_else():
    request = Request(3, [5, 6], 12288, derive_seed("any"))
    found = sampling_params(Sampling(max_new_tokens=9, temperature=0.6, top_p=0.95, top_k=20), request, [1, 2])
    expected = SamplingParams(
        temperature=0.6, top_p=0.95, top_k=20, max_tokens=12288, seed=request.seed, stop_token_ids=[1, 2]
    )
    for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "stop_token_ids", "n", "min_tokens"):
        assert getattr(found, name) == getattr(expected, name), name
    assert (found.presence_penalty, found.frequency_penalty, found.repetition_penalty) == (0, 0, 1)
    assert (found.detokenize, found.output_kind) == (False, RequestOutputKind.FINAL_ONLY)


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), [(0, 0.9, 5), (1.0, 1.0, 0)])
def test_greedy_and_no_cut_leave_all_tokens(temperature, top_p, top_k):
    found = sampling_params(
        Sampling(max_new_tokens=9, temperature=temperature, top_p=top_p, top_k=top_k), Request(0, [1], 9, 0), [1]
    )
    assert (found.temperature, found.top_p, found.top_k) == (temperature, 1, 0)


def test_the_engine_is_opened_with_arguments_that_exist(monkeypatch):
    seen = []
    monkeypatch.setattr(LLMEngine, "from_engine_args", classmethod(lambda cls, arguments: seen.append(arguments)))
    open_engine("some/model", 14336, 0.3)
    (arguments,) = seen
    assert isinstance(arguments, EngineArgs)
    assert (arguments.model, arguments.max_model_len, arguments.generation_config) == ("some/model", 14336, "vllm")
    assert arguments.gpu_memory_utilization == 0.3


def test_the_engine_has_what_we_call_and_outputs_what_we_read():
    parameters = list(inspect.signature(LLMEngine.add_request).parameters)
    assert parameters[1:4] == ["request_id", "prompt", "params"]
    assert callable(LLMEngine.step) and callable(LLMEngine.has_unfinished_requests)
    assert {"request_id", "outputs", "finished"} <= set(inspect.signature(RequestOutput).parameters)
    assert {"token_ids", "finish_reason"} <= set(inspect.signature(CompletionOutput).parameters)


@pytest.mark.parametrize("name", ["2", "GPU-2deb0782-510e-a736-2239-e9433c0abaaa"])
def test_vllm_finds_the_gpu_however_it_is_named(monkeypatch, name):
    monkeypatch.setattr(Platform, "device_control_env_var", "CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
    if name != "2":
        with pytest.raises(ValueError, match="invalid literal for int"):
            Platform.device_id_to_physical_device_id(0)
    show(Gpu(name, "2"))
    assert Platform.device_id_to_physical_device_id(0) == 2
    assert os.environ["CUDA_DEVICE_ORDER"] == ("FASTEST_FIRST" if name == "2" else "PCI_BUS_ID")
