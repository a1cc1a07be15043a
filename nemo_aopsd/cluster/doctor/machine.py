"""The machine: GPUs, host memory, folders and ports."""

import os
import shutil
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_aopsd.cluster.doctor.result import ERROR, OK, WARN, Check, Run, gigabytes
from nemo_aopsd.run.access import existing_parent, why_unwritable

TESTED_GPUS = ("H100", "H200")
_FIELDS = "name,memory.total,compute_cap"


@dataclass(frozen=True)
class GPU:
    name: str
    memory: int  # bytes
    capability: tuple[int, int]


def find_gpus(run: Run) -> list[GPU]:
    """The GPUs that nvidia-smi lists. Raises OSError without it, ValueError on an answer that is no list of GPUs."""
    gpus = []
    for line in run(["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"], 30).splitlines():
        name, mebibytes, capability = (part.strip() for part in line.split(","))
        major, minor = map(int, capability.split("."))
        gpus.append(GPU(name, int(mebibytes) * 2**20, (major, minor)))
    return gpus


def check_gpus(gpus: list[GPU], why_none: str, wanted: int | None, is_fp8: bool) -> Check:
    """`wanted` GPUs a node for a cluster config; None for the local engine, which runs on a CPU as well."""
    kinds = Counter(f"{gpu.name}, {gigabytes(gpu.memory)}" for gpu in gpus)
    found = ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or f"none ({why_none})"
    if wanted is None:
        return Check("gpu", OK, found, "any GPU, or none: the local engine runs on a CPU")
    expected = f"{wanted} x {' or '.join(TESTED_GPUS)}"
    if len(gpus) < wanted:
        fewer = f", or set cluster.gpus_per_node={len(gpus)}" if gpus else ""
        return Check("gpu", ERROR, found, expected, f"Run this on the node that trains, with {wanted} GPUs{fewer}")
    need, kind = ((9, 0), "FP8 by blocks") if is_fp8 else ((8, 0), "bfloat16")
    if min(gpu.capability for gpu in gpus) < need:
        remedy = "Use newer GPUs" + (", or turn policy.megatron_cfg.fp8_cfg.enabled off" if is_fp8 else "")
        return Check("gpu", ERROR, found, f"compute capability {need[0]}.{need[1]} or more for {kind}", remedy)
    is_tested = all(any(kind in gpu.name for kind in TESTED_GPUS) for gpu in gpus)
    return Check("gpu", OK if is_tested else WARN, found, expected, "Try a short run first: aopsd.max_num_steps=2")


def check_precision(precision: str, has_gpu: bool) -> Check:
    """Of the local engine."""
    is_slow = precision == "bfloat16" and not has_gpu
    found = f"{precision}, {'on a GPU' if has_gpu else 'on a CPU'}"
    expected = "float32 on a CPU, where an update in bfloat16 takes many times as long"
    return Check("precision", WARN if is_slow else OK, found, expected, "Set policy.precision=float32")


def check_ports(ports: Iterable[int], environment: Mapping[str, str]) -> Check:
    """Ray's and vLLM's. A Ray that RAY_ADDRESS names is up already and holds its own."""
    taken = [str(port) for port in ports if not _is_free(port)]
    found = f"taken: {', '.join(taken)}" if taken else "all free"
    joins = environment.get("RAY_ADDRESS", "local") not in ("", "local")
    expected = "free: 6379, 8265 (Ray) and 20001, 20101, ... (one a vLLM engine)"
    remedy = "Stop what holds them (ray stop), or set RAY_ADDRESS to join that Ray"
    return Check("ports", WARN if taken and not joins else OK, found, expected, remedy)


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def host_memory() -> int:
    """Bytes of RAM."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_writable(name: str, path: Path, remedy: str) -> Check:
    """Really makes a folder in it, or in the nearest one above it."""
    expected = "a folder that can be written"
    if why := why_unwritable(path):
        return Check(name, ERROR, f"{path}: {why}", expected, remedy)
    return Check(name, OK, f"{path}, {gigabytes(shutil.disk_usage(existing_parent(path)).free)} free", expected)


def check_space(name: str, path: Path, need: float, what: str) -> Check:
    """`what` says how the `need` bytes add up."""
    free = shutil.disk_usage(existing_parent(path)).free
    expected, remedy = f"{gigabytes(need)}: {what}", f"Free {gigabytes(need - free)}, or move it: {path}"
    return Check(name, OK if free >= need else ERROR, f"{gigabytes(free)} free", expected, remedy)


def hf_home(environment: Mapping[str, str]) -> Path:
    """Where models and data sets are downloaded to."""
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(environment.get("HF_HOME") or f"{cache}/huggingface"))
