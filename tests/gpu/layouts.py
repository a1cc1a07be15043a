"""Every parallel layout of the NeMo RL engine side by side on one host, and a table of what they measured.

    python -m tests.gpu.layouts OUT [LANE ...] [--gpus 4] [--minutes 25]

Needs NeMo RL, vLLM and Megatron importable (the container, or PYTHONPATH). A lane starts as soon as its GPUs are free,
in the order below, and has caches and a Ray cluster of its own. OUT gets LANE.log, LANE.jsonl and summary.txt.
A GPU takes one lane at a time: NeMo RL's refit goes through a socket that is named after the GPU.
SmolLM2-135M is taken from $SMOLLM2, a Hugging Face directory; without it its lanes are left out, and said to be.
"""

from __future__ import annotations

import argparse
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
MEGATRON = "policy.megatron_cfg"
EAGER = "policy.generation.vllm_cfg.enforce_eager=true"
FP8 = (
    f"{MEGATRON}.fp8_cfg.enabled=true {MEGATRON}.optimizer.use_precision_aware_optimizer=false "
    "policy.make_sequence_length_divisible_by=128"
)
TOP_K = "aopsd.objective.name=topk_fkl aopsd.objective.top_k_form=none aopsd.weighting=uniform"
TP2 = f"{MEGATRON}.tensor_model_parallel_size=2 {MEGATRON}.sequence_parallel=true"
PP2 = f"{MEGATRON}.pipeline_model_parallel_size=2"
WORDS = (  # SmolLM2 on the example problems, without packing
    f"policy.model_name={SMOLLM2} aopsd.prompts=default data.train.data_path=examples/data/problems.jsonl "
    "policy.max_total_sequence_length=4096 policy.generation.max_new_tokens=256 aopsd.judge.max_new_tokens=96 "
    "aopsd.num_prompts_per_step=8 aopsd.curriculum.num_initial_attempts=1 policy.sequence_packing.enabled=false "
    f"policy.train_micro_batch_size=2 {MEGATRON}.optimizer.lr=1.0e-5"
)
MODEL, DATA = REPO / "nemo_aopsd/embedded/model", REPO / "nemo_aopsd/embedded/data/train.jsonl"
APART = 15  # seconds between starts: vLLM looks for a free port from the same number on in each
CLI = [sys.executable, "-c", "from nemo_aopsd.cli import main; main()"]


@dataclass
class Lane:
    name: str
    num_gpus: int
    overrides: str = ""
    command: list[str] = field(default_factory=lambda: [sys.executable, "-m", "pytest", "-q", "-s", "tests/gpu"])


def lanes(out: Path) -> list[Lane]:
    """In the order of their worth."""
    learn = [*CLI, "train", "examples/configs/aopsd_tiny_h100.yaml", f"logger.log_dir={out}/learn"]
    cost = [sys.executable, "benchmarks/step_cost_nemo.py", "--folder", "/tmp/step_cost", "--json", f"{out}/cost.json"]
    found = [
        Lane("bf16", 1),
        Lane("fp8", 1, f"{FP8} {EAGER}"),
        Lane("tp2", 2, f"cluster.gpus_per_node=2 {TP2} {EAGER}"),
        Lane("pp2", 2, f"cluster.gpus_per_node=2 {PP2} {MEGATRON}.num_layers_in_first_pipeline_stage=2 {EAGER}"),
        Lane("topk", 1, f"{TOP_K} {EAGER}", [sys.executable, "-m", "pytest", "-q", "-s", "tests/gpu/test_topk.py"]),
        Lane("grpo", 1, command=stock_grpo(out)),
        Lane("cost", 1, command=cost),
        Lane("learn", 1, command=learn),
        Lane("tp2dp2", 4, f"cluster.gpus_per_node=4 {TP2} {EAGER}"),
    ]
    if SMOLLM2:
        found[6:6] = [
            Lane("smollm2", 1, f"{WORDS} {EAGER}"),
            Lane("smollm2_fp8", 1, f"{WORDS} {FP8} {EAGER}"),
            Lane("smollm2_pp2", 2, f"{WORDS} cluster.gpus_per_node=2 {PP2} {EAGER}"),
        ]
    return found


def stock_grpo(out: Path) -> list[str]:
    """NeMo RL's own script with our environment: the tiny run of docs/nemo_rl_environment.md."""
    script = Path(os.environ.get("NEMO_RL", "/opt/nemo-rl")) / "examples/run_grpo.py"
    page = (REPO / "docs/nemo_rl_environment.md").read_text(encoding="utf-8")
    tiny = next(block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "prompts=tiny" in block)
    words = tiny.replace("\\\n", " ").replace("$AOPSD", str(REPO)).split()
    words = [f"logger.log_dir={out}/grpo" if word.startswith("logger.log_dir=") else word for word in words]
    return [sys.executable, *(str(script) if word == "examples/run_grpo.py" else word for word in words[1:])]


class Host:
    """GPUs of this machine, handed out in order of number."""

    def __init__(self, num_gpus: int, out: Path):
        self.all, self.free, self.out = list(range(num_gpus)), set(range(num_gpus)), out
        self.running: dict[str, tuple[subprocess.Popen, list[int], float]] = {}

    def start(self, lane: Lane) -> None:
        gpus = sorted(self.free)[: lane.num_gpus]
        self.free -= set(gpus)
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
            "AOPSD_GPU_OVERRIDES": lane.overrides,
            "AOPSD_GPU_REPORT": f"{self.out}/{lane.name}.jsonl",
            "AOPSD_GPU_RUN": f"/tmp/lane_{lane.name}/run",
            "NCCL_NVLS_ENABLE": "0",
            "OMP_NUM_THREADS": "8",
            **({} if gpus == self.all else {"LANE_GPUS": listed}),
        }
        with (self.out / f"{lane.name}.log").open("w") as log:
            process = subprocess.Popen(lane.command, cwd=REPO, env=environment, stdout=log, stderr=log)
        self.running[lane.name] = process, gpus, time.monotonic()

    def collect(self) -> dict[str, str]:
        """Lanes that have ended, with how."""
        ended = {}
        for name, (process, gpus, started) in list(self.running.items()):
            if process.poll() is not None:
                ended[name] = f"exit {process.returncode} after {time.monotonic() - started:.0f} s"
                self.free |= set(gpus)
                del self.running[name]
        return ended

    def stop(self) -> None:
        for process, _, _ in self.running.values():
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("only", nargs="*", metavar="LANE")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=25)
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    waiting = [lane for lane in lanes(out) if lane.num_gpus <= arguments.gpus]
    waiting = [lane for lane in waiting if not arguments.only or lane.name in arguments.only]
    outcomes = {lane.name: "not run" for lane in waiting}
    if not SMOLLM2:
        outcomes["smollm2"] = "not run: SMOLLM2 is not set"
    host, end = Host(arguments.gpus, out), time.monotonic() + 60 * arguments.minutes
    while (waiting or host.running) and time.monotonic() < end:
        outcomes |= host.collect()
        for lane in list(waiting):
            if lane.num_gpus <= len(host.free):
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


if __name__ == "__main__":
    main()
