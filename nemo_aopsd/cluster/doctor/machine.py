"""The machine: GPUs, driver, NCCL, host memory, environment variables, ports."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_aopsd.cluster.doctor.result import ERROR, OK, WARN, Check, Run, gigabytes

TESTED_GPUS = ("H100", "H200")
_FIELDS = "name,memory.total,driver_version,compute_cap"
_MIB = 2**20


@dataclass(frozen=True)
class GPU:
    name: str
    memory: int  # bytes
    driver: str
    capability: tuple[int, int]


def find_gpus(run: Run) -> list[GPU]:
    """The GPUs that nvidia-smi lists. Raises OSError without one, ValueError on an answer that is no list of GPUs."""
    gpus = []
    for line in run(["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"], 30).splitlines():
        name, memory, driver, capability = (part.strip() for part in line.split(","))
        major, minor = map(int, capability.split("."))
        gpus.append(GPU(name, int(memory) * _MIB, driver, (major, minor)))
    return gpus


def check_gpus(gpus: list[GPU], why_none: str, wanted: int | None, is_fp8: bool) -> Check:
    """`wanted` GPUs a node for a cluster config; None for the local engine, which runs on a CPU as well."""
    found = _listed(gpus) or f"none ({why_none})"
    if wanted is None:
        return Check("gpu", OK, found, "any GPU, or none: the local engine runs on a CPU")
    expected = f"{wanted} x {' or '.join(TESTED_GPUS)}"
    if len(gpus) < wanted:
        remedy = f"Run this on the node that trains, with {wanted} GPUs"
        remedy += f", or set cluster.gpus_per_node={len(gpus)}" if gpus else ""
        return Check("gpu", ERROR, found, expected, remedy)
    oldest = min(gpu.capability for gpu in gpus)
    need = (9, 0) if is_fp8 else (8, 0)
    if oldest < need:
        kind = "FP8 by blocks" if is_fp8 else "bfloat16"
        remedy = "Turn policy.megatron_cfg.fp8_cfg.enabled off" if is_fp8 else "Use newer GPUs"
        return Check("gpu", ERROR, found, f"compute capability {need[0]}.{need[1]} or more for {kind}", remedy)
    if not all(any(kind in gpu.name for kind in TESTED_GPUS) for gpu in gpus):
        return Check(
            "gpu", WARN, found, f"{expected}, which were tested", "Try a short run first: aopsd.max_num_steps=2"
        )
    return Check("gpu", OK, found, expected)


def _listed(gpus: list[GPU]) -> str:
    kinds = {(gpu.name, gpu.memory): 0 for gpu in gpus}
    for gpu in gpus:
        kinds[gpu.name, gpu.memory] += 1
    return ", ".join(f"{count} x {name}, {gigabytes(memory)}" for (name, memory), count in kinds.items())


def check_driver(gpus: list[GPU], cuda_of_driver: str | None, cuda_of_torch: str | None) -> Check:
    """A driver serves every CUDA of its own major version and all older ones."""
    if not gpus:
        return Check("cuda driver", OK, "no GPU here", "not needed on a CPU")
    found = f"driver {gpus[0].driver}, CUDA {cuda_of_driver or 'unknown'}; torch for {cuda_of_torch or 'CPU'}"
    if cuda_of_torch is None:
        remedy = "Install a torch with CUDA: pip install --force-reinstall torch"
        return Check("cuda driver", WARN, found, "a torch built for CUDA, since there is a GPU", remedy)
    if cuda_of_driver is None:
        return Check(
            "cuda driver", WARN, found, "a CUDA version in the head of nvidia-smi", "Run nvidia-smi and compare"
        )
    fits = int(cuda_of_driver.split(".")[0]) >= int(cuda_of_torch.split(".")[0])
    remedy = "" if fits else f"Update the driver, or install a torch for CUDA {cuda_of_driver}"
    return Check("cuda driver", OK if fits else ERROR, found, "a driver as new as torch's CUDA", remedy)


def check_nccl(versions: Mapping[str, str], environment: Mapping[str, str], num_gpus: int) -> Check:
    """`num_gpus` of the whole run."""
    found = next((versions[name] for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12") if name in versions), None)
    settings = " ".join(f"{key}={value}" for key, value in sorted(environment.items()) if key.startswith("NCCL_"))
    shown = " ".join(filter(None, [found or "no wheel of it", settings]))
    if num_gpus < 2:
        return Check("nccl", OK, shown, "not needed on one GPU")
    if found is None:
        return Check(
            "nccl", WARN, shown, "with torch", "Run: python -c 'import torch; print(torch.cuda.nccl.version())'"
        )
    slow = [key for key in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if environment.get(key, "0") not in ("", "0")]
    remedy = f"Unset {', '.join(slow)}: GPUs of a node would talk the slow way" if slow else ""
    return Check("nccl", WARN if slow else OK, shown, "with torch; P2P and shared memory on", remedy)


def check_arch_list(environment: Mapping[str, str], gpus: list[GPU], needed: bool) -> Check:
    """Megatron's backend compiles for TORCH_CUDA_ARCH_LIST and does not start without it."""
    name, value = "TORCH_CUDA_ARCH_LIST", environment.get("TORCH_CUDA_ARCH_LIST", "")
    if not needed:
        return Check(name, OK, value or "not set", "not needed here: Megatron only")
    wanted = sorted({f"{gpu.capability[0]}.{gpu.capability[1]}" for gpu in gpus}) or ["9.0"]
    listed = value.replace(";", " ").replace("+PTX", "").split()
    missing = [capability for capability in wanted if capability.rstrip("a") not in {v.rstrip("a") for v in listed}]
    remedy = f"Run: export {name}={';'.join(wanted)}" if missing else ""
    severity = OK if not missing else WARN if value else ERROR
    return Check(name, severity, value or "not set", " ".join(wanted), remedy)


def check_allocator(environment: Mapping[str, str], needed: bool) -> Check:
    """vLLM cannot sleep on expandable segments, and workers inherit the driver's environment."""
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    found = {name: environment[name] for name in names if environment.get(name)}
    bad = [name for name, value in found.items() if "expandable_segments:true" in value.lower().replace(" ", "")]
    shown = " ".join(f"{name}={value}" for name, value in found.items()) or "not set"
    if not bad or not needed:
        return Check("expandable_segments", OK, shown, "off where vLLM runs")
    remedy = f"Unset {', '.join(bad)}; for the trainer alone use policy.megatron_cfg.env_vars"
    return Check("expandable_segments", ERROR, shown, "off: vLLM cannot sleep on such memory", remedy)


def check_ports(ports: Iterable[int], environment: Mapping[str, str]) -> Check:
    """Ray's and vLLM's. With RAY_ADDRESS set, but to `local`, Ray is expected to be up already."""
    ports = list(ports)
    taken = [port for port in ports if not _is_free(port)]
    found = f"{len(ports) - len(taken)} of {len(ports)} free" + (
        f"; taken: {', '.join(map(str, taken))}" if taken else ""
    )
    expected = "free: 6379, 8265 (Ray) and 20001, 20101, ... (one a vLLM engine)"
    if taken and environment.get("RAY_ADDRESS", "local") not in ("", "local"):
        return Check("ports", OK, found, f"Ray at {environment['RAY_ADDRESS']} holds its own")
    remedy = "Stop what holds them (ray stop), or set RAY_ADDRESS to join that Ray" if taken else ""
    return Check("ports", WARN if taken else OK, found, expected, remedy)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def host_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes of RAM; None where the system does not say."""
    if not meminfo.is_file():
        return None
    for line in meminfo.read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None
