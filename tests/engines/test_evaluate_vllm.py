"""vLLM for evaluation, without vLLM: who gets which row, what a process that dies leads to, what is asked of vLLM."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from nemo_aopsd.engines import vllm_only
from nemo_aopsd.engines.vllm_only import load_tokenizer, open_model, worker
from nemo_aopsd.engines.vllm_only import model as module
from nemo_aopsd.engines.vllm_only.model import VLLMModel, visible_gpus
from nemo_aopsd.engines.vllm_only.worker import Gpu, Request, Task, answer, show, work
from nemo_aopsd.errors import UserError
from nemo_aopsd.types import Generation, Sampling
from tests import REPO, fake_vllm

SAMPLING = Sampling(max_new_tokens=50, temperature=0.6, top_p=0.9, top_k=7)
GPUS = [Gpu("0", "0"), Gpu("1", "1")]


@pytest.fixture(autouse=True)
def no_test_waits_for_ever():
    """The fault was a command that did not return; a test of it that does not return tells nobody."""

    def stop(*_):
        raise TimeoutError("still waiting")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(module, "_LOOK", 0.1)
    made = VLLMModel(Path("model"), GPUS, 100, [1], 0.9, target=fake_vllm.work)
    yield made
    made.close()


def wait_for_the_end(*processes):
    """Of processes that are not ours to wait for; a zombie has ended."""
    deadline = time.monotonic() + 30
    for process in processes:
        status = Path(f"/proc/{process}/status")
        while status.exists() and "zombie" not in status.read_text():
            assert time.monotonic() < deadline, f"process {process} is left behind"
            time.sleep(0.05)


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
    model = VLLMModel(Path("model"), GPUS[:1], 1000, [1], 0.9, target=fake_vllm.work)
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
        (
            fake_vllm.FAIL,
            r"GPU 1: ValueError: No available memory .* `gpu_memory_utilization`\. .* --gpu-memory\. .* same command",
        ),
        (fake_vllm.DIE, r"vLLM on GPU 1 ended with exit code 9 before [^.]*\. vLLM's messages"),
        (fake_vllm.KILLED, r"vLLM on GPU 1 was ended by signal 9; memory may have run out before "),
    ],
)
def test_a_process_that_fails_or_dies_is_an_error_and_ends_the_others(model, token, message):
    with pytest.raises(UserError, match=message):
        list(model.stream([[fake_vllm.SLOW], [token]], SAMPLING, seeds=[0, 0]))
    assert model.workers == []


def test_a_process_that_still_loads_is_ended_with_one_that_failed(model):
    model.target = fake_vllm.hang_beside_a_failure
    started = []
    model.close = lambda: started.extend(model.workers) or VLLMModel.close(model)
    with pytest.raises(UserError, match=r"vLLM on GPU 1: SystemExit: no model here\. vLLM's messages"):
        list(model.stream([[3], [3]], SAMPLING, seeds=[0, 0]))
    assert [worker.process.returncode for worker in started] == [-signal.SIGKILL] * 2


def test_what_a_killed_process_had_started_ends_and_does_not_hide_its_death(model):
    prompts = [[fake_vllm.SLOW], [fake_vllm.KILLED], [fake_vllm.SLOW], [fake_vllm.PARENT]]
    stream = model.stream(prompts, SAMPLING, seeds=[0] * 4)
    _, generation = next(stream)
    process, grandchild = generation.tokens
    with pytest.raises(UserError, match=r"vLLM on GPU 1 was ended by signal 9"):
        list(stream)
    wait_for_the_end(process, grandchild)


def test_a_reader_that_stops_early_ends_the_processes(model):
    stream = model.stream([[3], [fake_vllm.SLOW]], SAMPLING, seeds=[0, 0])
    next(stream)
    processes = [worker.process for worker in model.workers]
    stream.close()
    assert None not in [process.poll() for process in processes]


def run_parent(tmp_path, body):
    """`body` in a process of its own, as a command runs; its stdout can be read."""
    imports = (
        "import time\n"
        "from pathlib import Path\n"
        "from nemo_aopsd.engines.vllm_only.model import VLLMModel\n"
        "from nemo_aopsd.engines.vllm_only.worker import Gpu\n"
        "from nemo_aopsd.errors import UserError\n"
        "from nemo_aopsd.types import Sampling\n"
        "from tests import fake_vllm\n"
    )
    file = tmp_path / "parent.py"
    file.write_text(imports + body)
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    return subprocess.Popen([sys.executable, str(file)], cwd=REPO, env=environment, stdout=subprocess.PIPE, text=True)


def test_requests_that_nobody_will_read_do_not_keep_the_command(tmp_path):
    body = (
        "model = VLLMModel(Path('m'), [Gpu('GPU-8d63', '0')], 9000, [1], 0.9, target=fake_vllm.fail_before_reading)\n"
        "try:\n"
        "    prompts = [[70000] * 8000 for _ in range(100)]\n"  # 4 MB: no pipe has that room
        "    list(model.stream(prompts, Sampling(max_new_tokens=9), [0] * 100))\n"
        "except UserError as error:\n"
        "    kept = error\n"  # its traceback holds the processes, and with them the pipes
        "    print(error)\n"
        "    raise SystemExit(2)\n"
    )
    with run_parent(tmp_path, body) as parent:
        told, _ = parent.communicate(timeout=60)
    assert parent.returncode == 2
    assert told.startswith("vLLM on GPU GPU-8d63: ValueError: invalid literal for int() with base 10: 'GPU-8d63'. ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_parent_that_is_killed_leaves_no_process_behind(tmp_path, number):
    body = (
        "model = VLLMModel(Path('m'), [Gpu('0', '0')], 100, [1], 0.9, target=fake_vllm.work)\n"
        "stream = model.stream([[fake_vllm.SLOW], [fake_vllm.PARENT]], Sampling(max_new_tokens=9), [0, 0])\n"
        "print(*next(stream)[1].tokens, flush=True)\n"
        "time.sleep(600)\n"
    )
    with run_parent(tmp_path, body) as parent:
        processes = parent.stdout.readline().split()
        parent.send_signal(number)
    assert len(processes) == 2
    wait_for_the_end(*processes)


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


@pytest.fixture
def toy_vllm(monkeypatch):
    vllm = ModuleType("vllm")
    vllm.SamplingParams = lambda **options: options
    vllm.sampling_params = ModuleType("vllm.sampling_params")
    vllm.sampling_params.RequestOutputKind = SimpleNamespace(FINAL_ONLY="final only")
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", vllm.sampling_params)


def test_what_vllm_is_asked_and_what_becomes_of_its_answers(toy_vllm):
    engine, sent = ToyLLMEngine(), []
    answer(engine, [1, 2], Task(SAMPLING, [Request(4, [6, 7], 30, 11), Request(8, [3], 40, 12)]), sent.append)
    common = {"temperature": 0.6, "top_p": 0.9, "top_k": 7, "stop_token_ids": [1, 2], "detokenize": False}
    common["output_kind"] = "final only"
    assert engine.added == [
        ("4", {"prompt_token_ids": [6, 7]}, common | {"max_tokens": 30, "seed": 11}),
        ("8", {"prompt_token_ids": [3]}, common | {"max_tokens": 40, "seed": 12}),
    ]
    assert sent == [(8, Generation([3, 1], False)), (4, Generation([6, 7, 1], True))]
    answer(engine, [1], Task(Sampling(max_new_tokens=5, temperature=0), [Request(0, [3], 5, 1)]), sent.append)
    assert engine.added[-1][2].keys() == common.keys() - {"top_p", "top_k"} | {"max_tokens", "seed"}


def test_a_process_answers_until_its_parent_is_gone(monkeypatch, toy_vllm):
    monkeypatch.setattr(os, "environ", {})
    opened, sent = [], []
    monkeypatch.setattr(worker, "open_engine", lambda *options: opened.append(options) or ToyLLMEngine())
    ours, theirs = multiprocessing.Pipe()
    for index in (3, 4):
        ours.send(Task(SAMPLING, [Request(index, [6], 30, 0)]))
    ours.close()
    work(Gpu("1", "1"), "some/model", 4096, 0.5, [1], SimpleNamespace(recv=theirs.recv, send=sent.append))
    assert sent == [(3, Generation([6, 1], True)), (4, Generation([6, 1], True))]
    assert (opened, os.environ["CUDA_VISIBLE_DEVICES"]) == ([("some/model", 4096, 0.5)], "1")


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(vllm_only.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"vLLM is not installed\. Run: pip install"):
            open_model(SimpleNamespace(policy={}), 0.9)
    with pytest.raises(UserError, match=r"no usable tokenizer"):
        load_tokenizer(tmp_path)


LISTED = """\
GPU 0: NVIDIA H200 (UUID: GPU-2deb0782-510e-a736-2239-e9433c0abaaa)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-7f57f032-34ab-a064-c37c-7a4f75601cc5)
  MIG 2g.20gb     Device  0: (UUID: MIG-377e0049-554c-540b-93c6-d0976f8426cb)
  MIG 1g.10gb     Device  1: (UUID: MIG-f39aa248-6f1b-5769-b119-8d650bb34b27)
"""
WHOLE = Gpu("GPU-2deb0782-510e-a736-2239-e9433c0abaaa", "0")
PARTS = [
    Gpu(f"MIG-{name}", "1") for name in ("377e0049-554c-540b-93c6-d0976f8426cb", "f39aa248-6f1b-5769-b119-8d650bb34b27")
]


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    file = tmp_path / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n[ \"$*\" = -L ] && echo '{LISTED}'")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (None, [WHOLE, *PARTS]),
        ("3, 1", [Gpu("3", "3"), Gpu("1", "1")]),
        ("0,-1,1", GPUS[:1]),  # CUDA looks no further
        (WHOLE.name, [WHOLE]),
        ("MIG-f39,GPU-2deb", [PARTS[1], WHOLE]),
    ],
)
def test_every_way_to_name_gpus(nvidia_smi, monkeypatch, named, expected):
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == expected


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("", "CUDA_VISIBLE_DEVICES"),
        ("-1", "CUDA_VISIBLE_DEVICES"),
        ("GPU-9", r"names 'GPU-9', which fits 0 GPUs\. Give numbers, or names of these: GPU-2deb\S+, GPU-7f"),
        ("0,MIG-", r"names 'MIG-', which fits 2 GPUs"),
    ],
)
def test_gpus_that_are_not_there(nvidia_smi, monkeypatch, named, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    with pytest.raises(UserError, match=message):
        visible_gpus()


def test_no_driver(nvidia_smi):
    nvidia_smi.unlink()
    with pytest.raises(UserError, match=r"nvidia-smi found no GPU"):
        visible_gpus()


@pytest.mark.parametrize(
    ("gpu", "opened", "number", "order"),
    [(Gpu("3", "3"), [], "3", None), (WHOLE, [], "0", "PCI_BUS_ID"), (PARTS[0], [PARTS[0].name], "1", "PCI_BUS_ID")],
)
def test_vllm_reads_a_number_and_cuda_opens_what_was_named(monkeypatch, gpu, opened, number, order):
    monkeypatch.setattr(os, "environ", {})
    seen = []
    cuda = SimpleNamespace(cuInit=lambda flags: seen.append(os.environ["CUDA_VISIBLE_DEVICES"]) or 0)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: cuda)
    show(gpu)
    assert (seen, os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("CUDA_DEVICE_ORDER")) == (opened, number, order)


def test_a_part_that_cuda_cannot_open_is_told(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(cuInit=lambda flags: 100))
    with pytest.raises(RuntimeError, match=r"CUDA cannot open MIG-377\S+ \(cuInit gives 100\)"):
        show(PARTS[0])


def test_end_tokens_are_the_tokenizers_and_the_models():
    assert load_tokenizer(REPO / "nemo_aopsd/builtin/model").end_ids == {1}
