"""Every parallel layout of the NeMo RL engine side by side on one host, and a table of what they measured.

    python -m tests.gpu.layouts OUT [LANE ...] [--gpus 4] [--share 1] [--minutes 25]

Needs NeMo RL, vLLM and Megatron importable (the container, or PYTHONPATH). A lane starts as soon as its GPUs have room,
in the order given, or the one below, and has caches and a Ray cluster of its own. OUT gets LANE.log, LANE.jsonl and
summary.txt. `--share N` lets N lanes share a GPU, but for those that are timed or fill it; stage times then say little.
SmolLM2-135M is taken from $SMOLLM2, a Hugging Face directory, and the benchmarks from $BENCHMARKS, a folder of JSONL
files; lanes that lack theirs are left out, and said to be.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).parents[2]
SMOLLM2 = os.environ.get("SMOLLM2", "")
BENCHMARKS = os.environ.get("BENCHMARKS", "")
MEGATRON = "policy.megatron_cfg"
EAGER = "policy.generation.vllm_cfg.enforce_eager=true"
FP8 = (
    f"{MEGATRON}.fp8_cfg.enabled=true {MEGATRON}.optimizer.use_precision_aware_optimizer=false "
    "policy.make_sequence_length_divisible_by=128"
)
TOP_K = "aopsd.objective.name=topk_fkl aopsd.objective.top_k_form=none aopsd.weighting=uniform"
SUPPORT = "aopsd.objective.support=64 aopsd.weighting=uniform"
FKL = f"aopsd.objective.name=fkl {SUPPORT}"
DASH = f"aopsd.objective.name=dash aopsd.objective.token_clip=0.05 {SUPPORT}"
SAMPLER, TRAINER = "aopsd.scoring=sampler", "aopsd.scoring=trainer"  # a lane has the second one unless it says another
MOE = "policy.model_name={moe} +policy.generation.vllm_kwargs.moe_backend=triton"  # as examples/configs/*_a3b.yaml
EP2 = f"cluster.gpus_per_node=2 {MEGATRON}.expert_model_parallel_size=2"
TP2 = f"{MEGATRON}.tensor_model_parallel_size=2 {MEGATRON}.sequence_parallel=true"
PP2 = f"{MEGATRON}.pipeline_model_parallel_size=2"
CP2 = f"{MEGATRON}.context_parallel_size=2 policy.make_sequence_length_divisible_by=4"
UNPACKED = "policy.sequence_packing.enabled=false policy.train_micro_batch_size=2"
DTENSOR = f"{MEGATRON}.enabled=false policy.dtensor_cfg.enabled=true {UNPACKED}"  # packing needs flash-attn there
WORDS = (  # SmolLM2 on the example problems, without packing
    f"policy.model_name={SMOLLM2} aopsd.prompts=default data.train.data_path=examples/data/problems.jsonl "
    "policy.max_total_sequence_length=4096 policy.generation.max_new_tokens=256 aopsd.judge.max_new_tokens=96 "
    "aopsd.num_prompts_per_step=8 aopsd.curriculum.num_initial_attempts=1 policy.sequence_packing.enabled=false "
    f"policy.train_micro_batch_size=2 {MEGATRON}.optimizer.lr=1.0e-5"
)
MODEL, DATA = REPO / "nemo_aopsd/builtin/model", REPO / "nemo_aopsd/builtin/data/train.jsonl"
FIXED_CACHE = "+policy.generation.vllm_kwargs.kv_cache_memory_bytes=6000000000"  # with company, none can be measured
APART = 15  # seconds between starts, so that not all start Ray and load models at the same time
PORTS = 400  # of each lane, 100 for each of four engines: a port found free may be taken before vLLM listens on it
CLI = [sys.executable, "-c", "from nemo_aopsd.cli import main; main()"]


@dataclass
class Lane:
    name: str
    num_gpus: int
    overrides: str = ""
    command: list[str] = field(default_factory=lambda: [sys.executable, "-m", "pytest", "-q", "-s", "tests/gpu"])
    alone: bool = False  # whatever --share says
    needs: tuple[str, ...] = ()  # variables of the environment


def lanes(out: Path) -> list[Lane]:
    """In the order of their worth."""
    learn = [
        *CLI,
        "train",
        "examples/configs/aopsd_tiny_h100.yaml",
        f"logger.log_dir={out}/learn",
        FIXED_CACHE,
        TRAINER,
    ]
    cost = [sys.executable, "-m", "benchmarks.step_cost_nemo", "--folder", "/tmp/step_cost"]
    methods = ("uniform", "continuation", "batched", "topk16")
    arms = [f"{method}@{scoring}" for scoring in ("sampler", "trainer") for method in methods]
    cost += [
        "--json",
        f"{out}/cost.json",
        "--minutes",
        "14",
        "--steps",
        "6",
        *(word for arm in arms for word in ("--arm", arm)),
    ]
    top_k = [sys.executable, "-m", "pytest", "-q", "-s", "tests/gpu/test_topk.py"]
    scoring = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "tests/gpu/test_scoring.py",
        "tests/gpu/test_nemo_rl_engine.py",
    ]
    grpo, moe = stock("grpo", "nemo_rl_environment", out), MOE.format(moe=out / "moe_model")
    data = [word for path in sorted(Path(BENCHMARKS).glob("*.jsonl")) for word in ("--data", str(path))]
    evaluate = [*CLI, *f"evaluate {SMOLLM2} --engine vllm --gpu-memory 0.3 --out {out}/evaluated".split(), *data]
    return [
        Lane("bf16", 1),
        Lane("kept", 1, "aopsd.probes.keep_cache=true"),
        Lane("sampler", 1, SAMPLER, scoring),
        Lane("runner", 1, f"{SAMPLER} aopsd.probes.runner=batched", scoring),
        Lane("smollm2_sampler", 1, f"{WORDS} {SAMPLER}", scoring, needs=("SMOLLM2",)),
        Lane("moe", 1, f"{moe} {EAGER}"),
        Lane("moe_prefill", 1, f"{moe} aopsd.scoring=prefill {EAGER}", scoring),
        Lane("moe_ep2", 2, f"{moe} {EP2} {EAGER}"),
        Lane("moe_tp2_ep2", 2, f"{moe} {EP2} {TP2} {EAGER}"),
        Lane("sampler_dp2", 2, f"cluster.gpus_per_node=2 {SAMPLER}", scoring),
        Lane("sampler_tp2", 2, f"cluster.gpus_per_node=2 {TP2} {SAMPLER}", scoring),
        Lane("fp8", 1, f"{FP8} {EAGER}"),
        Lane("tp2", 2, f"cluster.gpus_per_node=2 {TP2} {EAGER}"),
        Lane("pp2", 2, f"cluster.gpus_per_node=2 {PP2} {MEGATRON}.num_layers_in_first_pipeline_stage=2 {EAGER}"),
        Lane("dp2", 2, f"cluster.gpus_per_node=2 {EAGER}"),
        Lane("topk", 1, f"{TOP_K} {EAGER}", top_k),
        Lane("topk_sampler", 1, f"{TOP_K} {SAMPLER} {EAGER}", top_k),
        Lane("fkl", 1, f"{FKL} {EAGER}", top_k),
        Lane("dash", 1, f"{DASH} {EAGER}", top_k),
        Lane("grpo", 1, command=[*grpo, FIXED_CACHE]),
        Lane("grpo_correct", 1, command=[*correctness(grpo, out), FIXED_CACHE]),
        Lane("sft", 1, command=stock("sft", "nemo_rl", out)),
        Lane("smollm2", 1, WORDS, needs=("SMOLLM2",)),
        Lane("smollm2_fp8", 1, f"{WORDS} {FP8} {EAGER}", needs=("SMOLLM2",)),
        Lane("smollm2_pp2", 2, f"{WORDS} cluster.gpus_per_node=2 {PP2} {EAGER}", needs=("SMOLLM2",)),
        Lane("cost", 1, command=cost, alone=True),
        Lane("learn", 1, command=learn),
        Lane("learn_sampler", 1, command=[*learn[:-3], f"logger.log_dir={out}/learn_sampler", FIXED_CACHE, SAMPLER]),
        Lane("tp2dp2", 4, f"cluster.gpus_per_node=4 {TP2} {EAGER}"),
        Lane("tp2_unpacked", 2, f"cluster.gpus_per_node=2 {TP2} {UNPACKED} {EAGER}"),
        Lane("fp8_tp2", 2, f"cluster.gpus_per_node=2 {TP2} {FP8} {EAGER}"),
        Lane("cp2", 2, f"cluster.gpus_per_node=2 {CP2} {EAGER}"),
        Lane("dtensor", 1, f"{DTENSOR} {EAGER}"),
        Lane("memory", 1, command=[sys.executable, "-m", "benchmarks.loss_memory"], alone=True),
        Lane("evaluate", 1, command=evaluate, needs=("SMOLLM2", "BENCHMARKS")),
    ]


def stock(name: str, page: str, out: Path) -> list[str]:
    """NeMo RL's own examples/run_NAME.py with our parts: the tiny run of docs/PAGE.md."""
    script = Path(os.environ.get("NEMO_RL", "/opt/nemo-rl")) / f"examples/run_{name}.py"
    text = (REPO / f"docs/{page}.md").read_text(encoding="utf-8")
    tiny = next(block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "prompts=tiny" in block)
    command = tiny[tiny.index("python ") :].replace("\\\n", " ").replace("$AOPSD", str(REPO))
    command = command.replace(f"examples/run_{name}.py", str(script)).replace("runs/", f"{out}/")
    return [sys.executable, *command.split()[1:]]


def correctness(grpo: list[str], out: Path) -> list[str]:
    """The stock run with the other shipped reward, which asks no judge."""
    words = [word.replace("grpo_progress_reward.yaml", "grpo_correct_nemo_rl.yaml") for word in grpo]
    return [*(word for word in words if not word.startswith("logger.log_dir=")), f"logger.log_dir={out}/grpo_correct"]


class Host:
    """GPUs of this machine with `share` places each. The emptiest go first, in order of number."""

    def __init__(self, num_gpus: int, share: int, out: Path):
        self.places, self.share, self.out = dict.fromkeys(range(num_gpus), share), share, out
        self.running: dict[str, tuple[subprocess.Popen, list[int], int, float]] = {}
        self.started = 0

    def room(self, lane: Lane) -> list[int]:
        """The GPUs for a lane; fewer than it needs if there is no room."""
        needed = self.share if lane.alone else 1
        fitting = [gpu for gpu, places in self.places.items() if places >= needed]
        return sorted(fitting, key=lambda gpu: -self.places[gpu])[: lane.num_gpus]

    def start(self, lane: Lane) -> None:
        gpus, taken = sorted(self.room(lane)), self.share if lane.alone else 1
        for gpu in gpus:
            self.places[gpu] -= taken
        listed = ",".join(map(str, gpus))
        caches = {
            name: f"/tmp/lane_{lane.name}/{name}"
            for name in ("HF_HOME", "NRL_MEGATRON_CHECKPOINT_DIR", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR")
        }
        environment = {
            **os.environ,
            **caches,
            "CUDA_VISIBLE_DEVICES": listed,
            "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{REPO}:{REPO}/tests/gpu/lane",
            "AOPSD_GPU_OVERRIDES": " ".join([TRAINER, lane.overrides, *([FIXED_CACHE] if self.share > 1 else [])]),
            "AOPSD_GPU_REPORT": f"{self.out}/{lane.name}.jsonl",
            "AOPSD_GPU_RUN": f"/tmp/lane_{lane.name}/run",
            "AOPSD_GPU_KILL": "policy" if lane.num_gpus > 1 else "generation",
            "NCCL_NVLS_ENABLE": "0",
            "RAY_TMPDIR": f"/tmp/lane_{lane.name}",
            "RAY_ADDRESS": "local",  # or NeMo RL may join any Ray of this host that has the same GPUs
            "LANE_PORTS": str(PORTS * (self.started % 12)),  # below 25,000, where NeMo RL's other ports begin
            "OMP_NUM_THREADS": "8",
            **({} if gpus == list(self.places) else {"LANE_GPUS": listed}),
        }
        self.started += 1
        with (self.out / f"{lane.name}.log").open("w") as log:
            process = subprocess.Popen(lane.command, cwd=REPO, env=environment, stdout=log, stderr=log)
        self.running[lane.name] = process, gpus, taken, time.monotonic()

    def collect(self) -> dict[str, str]:
        """Lanes that have ended, with how."""
        ended = {}
        for name, (process, gpus, taken, started) in list(self.running.items()):
            if process.poll() is not None:
                ended[name] = f"exit {process.returncode} after {time.monotonic() - started:.0f} s"
                for gpu in gpus:
                    self.places[gpu] += taken
                del self.running[name]
        return ended

    def stop(self) -> None:
        for process, *_ in self.running.values():
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("only", nargs="*", metavar="LANE")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=25)
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    fitting = {lane.name: lane for lane in lanes(out) if lane.num_gpus <= arguments.gpus}
    names = arguments.only or list(fitting)
    if unknown := [name for name in names if name not in fitting]:
        parser.error(f"no lane {', '.join(unknown)} on {arguments.gpus} GPUs; there are {', '.join(fitting)}")
    lacking = {name: [key for key in fitting[name].needs if not os.environ.get(key)] for name in names}
    waiting = [fitting[name] for name in names if not lacking[name]]
    outcomes = {name: f"not run: {' and '.join(keys)} not set" if keys else "not run" for name, keys in lacking.items()}
    if any("moe_model" in lane.overrides for lane in waiting):
        from tests.gpu.moe import write_moe  # heavy, and rarely wanted

        write_moe(out / "moe_model")
    host, end = Host(arguments.gpus, arguments.share, out), time.monotonic() + 60 * arguments.minutes
    while (waiting or host.running) and time.monotonic() < end:
        outcomes |= host.collect()
        for lane in list(waiting):
            if len(host.room(lane)) == lane.num_gpus:
                waiting.remove(lane)
                host.start(lane)
                time.sleep(APART)
                outcomes[lane.name] = "still running at the end"
        (out / "summary.txt").write_text(summary(out, outcomes), encoding="utf-8")
        time.sleep(2)
    host.stop()
    print((out / "summary.txt").read_text(encoding="utf-8"))


def summary(out: Path, outcomes: dict[str, str]) -> str:
    """A lane a paragraph: how it ended, what its tests said, and the figures that they measured."""
    lines = []
    for name, outcome in outcomes.items():
        log = (out / f"{name}.log").read_text(errors="replace") if (out / f"{name}.log").exists() else ""
        tests = re.findall(r"^\d+ (?:passed|failed).*$|^(?:FAILED|ERROR) .*$|^E   .*(?:Error|Exception).*$", log, re.M)
        lines += [f"== {name}: {outcome}", *dict.fromkeys(line[:200] for line in tests[:12])]
        figures = out / f"{name}.jsonl"
        for line in figures.read_text().splitlines() if figures.exists() else ():
            values = json.loads(line)
            lines.append(f"  {values.pop('test').removeprefix('test_')}: {json.dumps(values)[:300]}")
    return "\n".join(lines) + "\n"


def what_is_missing() -> str | None:
    """A lane without the container would only skip or fail, one after the other."""
    missing = [name for name in ("nemo_rl", "ray", "vllm") if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    return f"error: this Python cannot import {', '.join(missing)}. Run in the NeMo RL container: containers/README.md"


if __name__ == "__main__":
    sys.exit(what_is_missing() or main())
