"""`aopsd doctor`: will a run work on this machine? Every check is a small function that returns a `Check`.

Nothing is changed, and no package of the cluster is imported into this process.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nemo_aopsd.cluster.doctor import fit, machine, memory, model, probe, versions
from nemo_aopsd.cluster.doctor.memory import Item
from nemo_aopsd.cluster.doctor.model import ModelSize, read_size
from nemo_aopsd.cluster.doctor.result import ERROR, OK, WARN, Check, Run, parameters, run
from nemo_aopsd.cluster.rules import broken_sizes, refuse
from nemo_aopsd.cluster.tree import VLLM, Tree
from nemo_aopsd.config.nemo_rl_keys import PolicyKeys
from nemo_aopsd.config.schema import Config
from nemo_aopsd.console import counted
from nemo_aopsd.errors import UserError
from nemo_aopsd.run.preflight import Findings


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
    except FileNotFoundError:
        why = "no nvidia-smi on the PATH"
    except (OSError, ValueError) as error:
        why = f"nvidia-smi: {error}"
    return Surroundings(environment, probe.versions(versions.TESTED), gpus, why, run)


def diagnose(config: Config | None, around: Surroundings) -> Diagnosis:
    """The machine, and the model of `config` on it. `of_train` has the rest, which training checks as well.

    Raises UserError for a cluster config with a size that is no whole number: memory and GPUs depend on it.
    """
    tree = Tree(config.raw) if config and config.aopsd.engine == "nemo_rl" else None
    if tree:
        refuse(broken_sizes(tree))
    has_cluster = tree is not None or (config is None and "nemo-rl" in around.versions)
    diagnosis = Diagnosis([*_software(has_cluster, around), *_hardware(tree, around)])
    if has_cluster and "nemo-rl" in around.versions:
        for kind in ("vllm", "dtensor" if tree and tree.uses_dtensor else "megatron"):
            diagnosis.checks += versions.check_worker(kind, around.environment, around.run)
    hub = machine.hf_home(around.environment)
    diagnosis.checks.append(machine.check_writable("hugging face cache", hub, "Set HF_HOME to a folder of your own"))
    if config:
        if not tree:
            precision = config.policy.get("precision") or PolicyKeys.precision
            diagnosis.checks.append(machine.check_precision(precision, bool(around.gpus)))
        size = _check_model(config, diagnosis)
        diagnosis.checks += _room(config, size)
        if size:
            _fit(config, size, diagnosis, around)
    return diagnosis


def _software(has_cluster: bool, around: Surroundings) -> Iterator[Check]:
    found = around.versions
    if not has_cluster:
        yield from (versions.check_local(package, found.get(package)) for package in versions.LOCAL)
        return
    yield versions.check_local("python", found["python"])
    if "nemo-rl" not in found:  # the cause of all that would be missing beside it
        yield versions.check_tested("nemo-rl", None)
        return
    yield from (versions.check_tested(package, found.get(package)) for package in versions.DRIVER)


def _hardware(tree: Tree | None, around: Surroundings) -> Iterator[Check]:
    """`tree` is a cluster config's, or None."""
    wanted = tree.size("cluster.gpus_per_node") if tree else None
    yield machine.check_gpus(around.gpus, around.why_no_gpu, wanted, tree is not None and tree.fp8_multiple > 1)
    if tree and wanted:
        engines = max(wanted // tree.size(f"{VLLM}.tensor_parallel_size"), 1)
        yield machine.check_ports([6379, 8265, *(20001 + 100 * i for i in range(engines))], around.environment)


def of_train(config: Config, found: Findings) -> Iterator[Check]:
    """What `aopsd train --check` says of `config`."""
    training, held_out = found.inputs or ([], None)
    file = config.aopsd.evaluation.data_path
    evaluation = f"{counted(len(held_out), 'held-out problem')}, {file}" if held_out else "none held out"
    problems = f"{len(training)}, {config.data['train']['data_path']}; {evaluation}"
    for name, fine, expected in (
        ("run folder", config.logger["log_dir"], "a new folder that can be written"),
        ("settings", "all accepted", f"settings that aopsd.engine={config.aopsd.engine} can work with"),
        ("problems", problems, "problems that this config can train on"),
        ("prompts", "all fit", "room for each problem, and no thinking switch that the chat template lacks"),
    ):
        remedy = "Change what is named; aopsd train --check says when it is right"
        if error := found.refused.get(name):
            yield Check(name, ERROR, error, expected, remedy)
        elif told := found.warned.get(name):
            yield Check(name, WARN, "; ".join(line.rstrip(".") for line in told), expected, remedy)
        elif name != "prompts" or found.knows_lengths:
            yield Check(name, OK, fine, expected)


def _check_model(config: Config, diagnosis: Diagnosis) -> ModelSize | None:
    """Checks of model and tokenizer; the size if it can be counted."""
    name = config.policy["model_name"]
    check, content = model.check_model(name, config.aopsd.engine)
    its_name = (config.policy.get("tokenizer") or {}).get("name") or name
    tokenizer = model.check_tokenizer(its_name, config.aopsd.engine)
    size, severity, found = None, OK, "not counted: no config.json to count from"
    try:
        size = read_size(content) if content else None
    except UserError as error:
        severity, found = WARN, f"not counted, so memory is not checked: {error}"
    if size:
        found, diagnosis.parameters = parameters(size.total), size.total
    remedy = "Compare by hand, with the formulas of docs/doctor.md"
    check_size = Check("parameters", severity, found, "a family that is known", remedy)
    diagnosis.checks += [check, tokenizer, check_size]
    return size


def _room(config: Config, size: ModelSize | None) -> Iterator[Check]:
    if size and config.checkpointing["enabled"]:
        kept = (config.checkpointing.get("keep_top_k") or 1) + 1
        each = (14 if config.aopsd.engine == "nemo_rl" else 12) * size.total  # bf16 + three float32, or three float32
        what = f"{kept} checkpoints, the one being written among them, of {each / size.total:g} B a parameter"
        place = Path(config.checkpointing["checkpoint_dir"])
        yield machine.check_space("room for checkpoints", place, kept * each, what)


def _fit(config: Config, size: ModelSize, diagnosis: Diagnosis, around: Surroundings) -> None:
    """Memory: checks and the table."""
    gpu, host = min((gpu.memory for gpu in around.gpus), default=None), machine.host_memory()
    if config.aopsd.engine == "local":
        diagnosis.memory = memory.local_items(size, config, "gpu" if gpu else "host")
        checks = [fit.check_local(diagnosis.memory, gpu or host)]
    elif Tree(config.raw).uses_megatron:
        layout = memory.read_layout(config)
        checks, diagnosis.memory = fit.check_cluster(size, layout, gpu, host if gpu else None)
    else:
        checks = [Check("memory", WARN, "not estimated for DTensor", "Megatron", "Try a short run first")]
    diagnosis.checks += checks
