"""vLLM for evaluation, without vLLM: who gets which row, what a process that dies leads to, what is asked of vLLM."""

import queue
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from nemo_aopsd.engines.vllm_only import model as module
from nemo_aopsd.engines.vllm_only.model import VLLMModel, check_installed, load_tokenizer, visible_gpus
from nemo_aopsd.engines.vllm_only.worker import Request, Response, Task, answer
from nemo_aopsd.errors import UserError
from nemo_aopsd.types import Generation, Sampling
from tests import REPO, fake_vllm

SAMPLING = Sampling(max_new_tokens=50, temperature=0.6, top_p=0.9, top_k=7)


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 0.5)
    made = VLLMModel(Path("model"), ["0", "1"], 100, [1], 0.9, target=fake_vllm.work)
    yield made
    made.close()


def test_rows_go_to_the_gpus_in_turn_and_come_back_under_their_index(model):
    prompts = [[10 + row] for row in range(5)]
    found = dict(model.stream(prompts, SAMPLING, seeds=[100, 101, 102, 103, 104]))
    assert found == {row: Generation([row % 2, 100, 100 + row, 10 + row, 1], True) for row in range(5)}
    processes = [worker.process.pid for worker in model.workers]
    assert dict(model.stream([[9]], SAMPLING, seeds=[7])) == {0: Generation([0, 100, 7, 9, 1], True)}
    assert [worker.process.pid for worker in model.workers] == processes  # the model is loaded once


def test_a_row_without_room_is_unfinished_and_one_with_little_stops_there(model):
    prompts = [[5] * 100, [5] * 98, [5] * 3]
    found = dict(model.stream(prompts, SAMPLING, seeds=[1, 2, 3]))
    assert found[0] == Generation([], False)
    assert [len(found[row].tokens) for row in (1, 2)] == [2, 7]


def test_only_longer_rows_start_the_processes_anew(monkeypatch):
    monkeypatch.setattr(module, "_STEP", 64)
    model = VLLMModel(Path("model"), ["0"], 1000, [1], 0.9, target=fake_vllm.work)
    try:
        lengths = []
        for size in (10, 14, 15, 3):  # with 50 new tokens: 60, 64, 65, 53
            ((_, generation),) = model.stream([[5] * size], SAMPLING, seeds=[0])
            lengths.append((generation.tokens[1], model.workers[0].process.pid))
    finally:
        model.close()
    assert [length for length, _ in lengths] == [64, 64, 128, 128]
    assert len({pid for _, pid in lengths}) == 2


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (fake_vllm.DIE, r"vllm on GPU 1 ended with exit code 9 .* start the same command to go on"),
        (fake_vllm.FAIL, r"vLLM on GPU 1: ValueError: no room for the KV cache\."),
    ],
)
def test_a_process_that_fails_or_dies_is_an_error_and_ends_the_others(model, token, message):
    with pytest.raises(UserError, match=message):
        list(model.stream([[3], [token], [3]], SAMPLING, seeds=[0, 0, 0]))
    assert model.workers == []


def test_a_reader_that_stops_early_ends_the_processes(model):
    stream = model.stream([[3], [fake_vllm.SLOW]], SAMPLING, seeds=[0, 0])
    next(stream)
    processes = [worker.process for worker in model.workers]
    stream.close()
    assert not any(process.is_alive() for process in processes)


def test_a_killed_parent_leaves_no_process_behind(tmp_path):
    script = (
        "import os, signal\nfrom pathlib import Path\n"
        "from nemo_aopsd.engines.vllm_only.model import VLLMModel\nfrom nemo_aopsd.types import Sampling\n"
        "from tests import fake_vllm\n"
        "if __name__ == '__main__':\n"
        "    model = VLLMModel(Path('m'), ['0'], 100, [1], 0.9, target=fake_vllm.work)\n"
        "    list(model.stream([[3]], Sampling(max_new_tokens=9), [0]))\n"
        "    print(model.workers[0].process.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    file = tmp_path / "parent.py"
    file.write_text(script)
    root = REPO
    with subprocess.Popen(
        [sys.executable, str(file)], cwd=root, env={"PYTHONPATH": str(root)}, stdout=subprocess.PIPE, text=True
    ) as parent:
        worker = int(parent.stdout.readline())
        parent.wait()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and "zombie" not in Path(f"/proc/{worker}/status").read_text():
        assert time.monotonic() < deadline, "the worker outlives its parent"
        time.sleep(0.2)


class ToyLLMEngine:
    """vLLM's engine as `answer` sees it: two steps a request, the last added ends first."""

    def __init__(self):
        self.added, self.running = [], []

    def add_request(self, request_id, prompt, params):
        self.added.append((request_id, prompt, params))
        self.running.append((request_id, prompt["prompt_token_ids"]))

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        request_id, prompt = self.running.pop()
        reason = "stop" if prompt[0] > 5 else "length"
        partial = SimpleNamespace(request_id=request_id, finished=False, outputs=[])
        completion = SimpleNamespace(token_ids=(*prompt, 1), finish_reason=reason)
        return [partial, SimpleNamespace(request_id=request_id, finished=True, outputs=[completion])]


def test_what_vllm_is_asked_and_what_becomes_of_its_answers(monkeypatch):
    kinds = SimpleNamespace(FINAL_ONLY="final only")
    vllm = ModuleType("vllm")
    vllm.SamplingParams = lambda **options: options
    vllm.sampling_params = ModuleType("vllm.sampling_params")
    vllm.sampling_params.RequestOutputKind = kinds
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", vllm.sampling_params)
    engine, out = ToyLLMEngine(), queue.Queue()
    answer(engine, [1, 2], Task(SAMPLING, [Request(4, [6, 7], 30, 11), Request(8, [3], 40, 12)]), out)
    common = {"temperature": 0.6, "top_p": 0.9, "top_k": 7, "stop_token_ids": [1, 2], "detokenize": False}
    common["output_kind"] = "final only"
    assert engine.added == [
        ("4", {"prompt_token_ids": [6, 7]}, common | {"max_tokens": 30, "seed": 11}),
        ("8", {"prompt_token_ids": [3]}, common | {"max_tokens": 40, "seed": 12}),
    ]
    assert [out.get(), out.get()] == [Response(8, [3, 1], False), Response(4, [6, 7, 1], True)]
    answer(engine, [1], Task(Sampling(max_new_tokens=5, temperature=0), [Request(0, [3], 5, 1)]), out)
    assert engine.added[-1][2].keys() == common.keys() - {"top_p", "top_k"} | {"max_tokens", "seed"}


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(module.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"vLLM is not installed\. Run: pip install"):
            check_installed()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, 3")
    assert visible_gpus() == ["GPU-a", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match=r"no GPU to be seen"):
        visible_gpus()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"nvidia-smi found no GPU"):
        visible_gpus()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho GPU-1\necho GPU-2\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert visible_gpus() == ["GPU-1", "GPU-2"]
    with pytest.raises(UserError, match=r"no usable tokenizer"):
        load_tokenizer(tmp_path)


def test_end_tokens_are_the_tokenizers_and_the_models():
    assert load_tokenizer(REPO / "nemo_aopsd/builtin/model").end_ids == {1}
