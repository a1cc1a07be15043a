"""`aopsd doctor`: will a run work on this machine? Every check is a small function that returns a `Check`.

Nothing is changed, and no package of the cluster is imported into this process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nemo_aopsd.cluster.doctor import fit, inputs, machine, memory, model_files, places, probe, versions, workers
from nemo_aopsd.cluster.doctor.memory import Item
from nemo_aopsd.cluster.doctor.model_size import ModelSize, read_size
from nemo_aopsd.cluster.doctor.result import ERROR, OK, WARN, Check, Run, parameters, run
from nemo_aopsd.config.checks import select
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError


@dataclass
class Diagnosis:
    """`parameters` is None without a config, or where they cannot be counted; `memory` is then empty."""

    checks: list[Check] = field(default_factory=list)
    memory: list[Item] = field(default_factory=list)
    parameters: int | None = None


@dataclass(frozen=True)
class Surroundings:
    """What the checks look at; tests put others in its place."""

    environment: Mapping[str, str]
    versions: dict[str, str]
    gpus: list[machine.GPU]
    why_no_gpu: str
    run: Run


def look_around(environment: Mapping[str, str] = os.environ, run: Run = run) -> Surroundings:
    gpus, why = [], "nvidia-smi lists none"
    try:
        gpus = machine.find_gpus(run)
    except (OSError, ValueError) as error:
        why = "no nvidia-smi on the PATH" if isinstance(error, FileNotFoundError) else f"nvidia-smi: {error}"
    return Surroundings(environment, probe.versions(), gpus, why, run)


def diagnose(config: Config | None, around: Surroundings) -> Diagnosis:
    """Everything, in the order of the table. The engine's own check of its settings is the command's to add."""
    wants_cluster = config is not None and config.aopsd.engine == "nemo_rl"
    if config and wants_cluster:
        _require_sizes(config)
    diagnosis = Diagnosis([*_software(config, around), *_hardware(config if wants_cluster else None, around)])
    has_cluster = wants_cluster or (config is None and "nemo-rl" in around.versions)
    if has_cluster:
        for kind in _worker_kinds(config):
            diagnosis.checks += workers.check_worker(kind, around.environment, around.run)
    if config:
        diagnosis.checks.append(inputs.check_data(config))
    size = _model(config, diagnosis) if config else None
    diagnosis.checks += _folders(config, size, around.environment)
    if config and size:
        _fit(config, size, diagnosis, around)
    return diagnosis


def _require_sizes(config: Config) -> None:
    """Raises UserError where a size that everything here is counted with is none."""
    keys = [*("cluster.num_nodes", "cluster.gpus_per_node"), "policy.generation.vllm_cfg.tensor_parallel_size"]
    keys += ["policy.generation.vllm_cfg.max_model_len", "policy.train_micro_batch_size"]
    if select(config.raw, "policy.megatron_cfg.enabled"):
        keys += [f"policy.megatron_cfg.{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context")]
    values = {key: select(config.raw, key) for key in keys}
    wrong = [key for key, value in values.items() if type(value) is not int or value < 1]
    if wrong:
        raise UserError(f"{', '.join(wrong)}: expected a whole number of at least 1, as in examples/configs.")


def _software(config: Config | None, around: Surroundings) -> Iterator[Check]:
    engine = config.aopsd.engine if config else None
    yield versions.check_python(around.versions)
    if engine == "nemo_rl" or (engine is None and "nemo-rl" in around.versions):
        yield from versions.check_driver(around.versions)
        return
    yield from versions.check_local(around.versions)
    if "nemo-rl" not in around.versions:
        yield versions.check_cluster_absent(around.versions)


def _hardware(config: Config | None, around: Surroundings) -> Iterator[Check]:
    """`config` is a cluster's, or None."""
    tree = config.raw if config else {}
    wanted, nodes = select(tree, "cluster.gpus_per_node"), select(tree, "cluster.num_nodes") or 1
    is_megatron = bool(select(tree, "policy.megatron_cfg.enabled"))
    is_fp8 = is_megatron and bool(select(tree, "policy.megatron_cfg.fp8_cfg.enabled"))
    yield machine.check_gpus(around.gpus, around.why_no_gpu, wanted, is_fp8)
    cuda = _cuda_of_driver(around) if around.gpus else None
    yield machine.check_driver(around.gpus, cuda, around.versions.get("torch-cuda"))
    yield machine.check_nccl(around.versions, around.environment, (wanted or 1) * nodes)
    yield machine.check_arch_list(around.environment, around.gpus, is_megatron)
    yield machine.check_allocator(around.environment, config is not None)
    if config:
        engines = max(wanted // select(tree, "policy.generation.vllm_cfg.tensor_parallel_size"), 1)
        yield machine.check_ports([6379, 8265, *(20001 + 100 * i for i in range(engines))], around.environment)


def _cuda_of_driver(around: Surroundings) -> str | None:
    """From the head of nvidia-smi's table; some drivers call it the UMD's. None where it is not there."""
    try:
        match = re.search(r"CUDA (?:UMD )?Version:\s*([\d.]+)", around.run(["nvidia-smi"], 30))
    except OSError:
        return None  # `check_driver` says that it is unknown
    return match[1] if match else None


def _worker_kinds(config: Config | None) -> tuple[str, ...]:
    if config is None or select(config.raw, "policy.megatron_cfg.enabled"):
        return "vllm", "megatron"
    return "vllm", "dtensor"


def _model(config: Config, diagnosis: Diagnosis) -> ModelSize | None:
    """Checks of model and tokenizer; the size where it can be counted."""
    name, thinking = config.policy["model_name"], config.aopsd.thinking
    check, content = model_files.check_model(name)
    tokenizer = (config.policy.get("tokenizer") or {}).get("name") or name
    diagnosis.checks.append(check)
    if check.severity == ERROR and tokenizer == name:
        diagnosis.checks.append(
            Check("tokenizer", ERROR, "not looked for without its model", "the model", check.remedy)
        )
    else:
        diagnosis.checks.append(model_files.check_tokenizer(tokenizer, (thinking.student, thinking.teacher)))
    if content is None:
        diagnosis.checks.append(Check("parameters", OK, "not counted", "a config.json to count from"))
        return None
    try:
        size = read_size(content)
    except UserError as error:
        remedy = "Compare by hand, with the formulas of docs/doctor.md"
        found = f"not counted, so memory is not checked: {error}"
        diagnosis.checks.append(Check("parameters", WARN, found, "a family that is known", remedy))
        return None
    diagnosis.parameters = size.total
    diagnosis.checks.append(Check("parameters", OK, parameters(size.total), "any number that fits, see below"))
    return size


def _folders(config: Config | None, size: ModelSize | None, environment: Mapping[str, str]) -> Iterator[Check]:
    hub = places.hf_home(environment)
    yield places.check_writable("hugging face cache", hub, "Set HF_HOME to a folder of your own")
    if config is None:
        return
    run_folder, checkpoints = Path(config.logger["log_dir"]), Path(config.checkpointing["checkpoint_dir"])
    yield places.check_writable("run folder", run_folder, "Set logger.log_dir to a folder of your own")
    is_cluster, converted = config.aopsd.engine == "nemo_rl", places.converted_models(environment)
    if is_cluster:
        nodes = config.raw["cluster"]["num_nodes"]
        yield places.check_shared("run folder's file system", run_folder, nodes)
        yield places.check_shared("checkpoints' file system", checkpoints, nodes)
        yield places.check_shared("cache's file system", hub, nodes)
        yield places.check_shared("converted models' file system", converted, nodes)
    if size and config.checkpointing["enabled"]:
        kept = (config.checkpointing.get("keep_top_k") or 1) + 1
        each = (14 if is_cluster else 12) * size.total  # bf16 + three float32, or three float32
        what = f"{kept} checkpoints, the one being written among them, of {each / size.total:g} B a parameter"
        yield places.check_space("room for checkpoints", checkpoints, kept * each, what)
    if size and is_cluster:
        yield places.check_space("room for the converted model", converted, 2 * size.total, "2 B a parameter, once")


def _fit(config: Config, size: ModelSize, diagnosis: Diagnosis, around: Surroundings) -> None:
    """Memory: checks and the table."""
    gpu = min((gpu.memory for gpu in around.gpus), default=None)
    if config.aopsd.engine == "local":
        here = fit.Machine(gpu, machine.host_memory())
        checks, diagnosis.memory = fit.check_local(size, config.policy, config.aopsd.teacher.weights, here)
    elif select(config.raw, "policy.megatron_cfg.enabled"):
        here = fit.Machine(gpu, machine.host_memory() if around.gpus else None)
        checks, diagnosis.memory = fit.check_cluster(size, memory.read_layout(config), here)
    else:
        checks = [Check("memory", WARN, "not estimated", "policy.megatron_cfg.enabled=true", "Try a short run first")]
    diagnosis.checks += checks
