"""Does each of NeMo RL's worker environments import our worker class, and with which versions?

The container has an environment a worker class under NEMO_RL_VENV_DIR; our class runs in its parent's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_aopsd.cluster.doctor import versions
from nemo_aopsd.cluster.doctor.result import ERROR, OK, Check, Run
from nemo_aopsd.cluster.worker_classes import WORKERS

PROBE = Path(__file__).with_name("probe.py")
SECONDS = 240  # a cold import of vLLM or Megatron from a network file system takes minutes


@dataclass(frozen=True)
class Environment:
    """`python` is the interpreter; `is_own` says that it is not simply this one."""

    python: str
    is_own: bool


def find_environment(kind: str, environment: Mapping[str, str]) -> Environment:
    """As `register_worker` decides it: this Python, or the parent's prebuilt one where that is there."""
    folder = Path(environment.get("NEMO_RL_VENV_DIR", "/opt/ray_venvs"), WORKERS[kind][1])
    if environment.get("NEMO_RL_PY_EXECUTABLES_SYSTEM") != "1" and (folder / "bin/python").is_file():
        return Environment(str(folder / "bin/python"), True)
    return Environment(sys.executable, False)


def check_worker(kind: str, environment: Mapping[str, str], run: Run, seconds: float = SECONDS) -> Iterator[Check]:
    """The import of our class, then the versions around it. A missing answer is an error, not a pass."""
    where = find_environment(kind, environment)
    name, (ours, _) = f"worker {kind}", WORKERS[kind]
    try:
        answer = json.loads(run([where.python, "-P", str(PROBE), ours], seconds).strip().splitlines()[-1])
    except (OSError, ValueError, IndexError) as error:
        remedy = f"Run it by hand: {where.python} -P {PROBE} {ours}"
        yield Check(name, ERROR, f"no answer: {error}", f"{ours} imports in {where.python}", remedy)
        return
    problem = answer["import_error"]
    remedy = _remedy(problem, where) if problem else ""
    yield Check(name, ERROR if problem else OK, problem or "imports", f"{ours} in {where.python}", remedy)
    for package in versions.WORKERS[kind]:
        yield versions.check_package(package, answer["versions"].get(package), f"worker {kind}: ")


def _remedy(problem: str, where: Environment) -> str:
    if "nemo_aopsd" in problem:
        return "Put this package into that environment: containers/README.md, `Without building an image`"
    if where.is_own:
        return f"Mend that environment: {where.python} misses what the message names"
    return "Run inside the NeMo RL v0.7.0 container, or set NEMO_RL_VENV_DIR: containers/README.md"
