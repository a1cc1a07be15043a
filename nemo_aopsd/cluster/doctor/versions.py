"""Installed versions against the tested ones (docs/verification.md), here and in the environments of Ray's workers.

The NeMo RL container has an environment a worker class under NEMO_RL_VENV_DIR; our class runs in its parent's.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from nemo_aopsd.cluster import WORKERS
from nemo_aopsd.cluster.doctor.result import ERROR, OK, WARN, Check, Run
from nemo_aopsd.console import slow

LOCAL = {"python": ">=3.11,<3.14", "torch": ">=2.11", "transformers": ">=5"}  # what the local engine stands on
TESTED = {
    "nemo-rl": "0.7.0",
    "ray": "2.55.1",
    "torch": "2.11.0",
    "transformers": "5.8.1",
    "vllm": "0.20.0",
    "megatron-core": "0.19.0",
    "megatron-bridge": "0.6.0",
    "transformer-engine": "2.15.0",
}
DRIVER = ("nemo-rl", "ray", "torch", "transformers")  # what the driver imports
IN_WORKER = {
    "vllm": ("torch", "transformers", "vllm"),
    "megatron": ("torch", "transformers", "megatron-core", "megatron-bridge", "transformer-engine"),
    "dtensor": ("torch", "transformers"),
}
ACCEPTED = {"transformers": ">=5.4,<5.12"}  # NeMo RL v0.7.0 refuses others: models/policy/__init__.py
PROBE = Path(__file__).with_name("probe.py")
SECONDS = 240  # a cold import of vLLM or Megatron from a network file system takes minutes
_INSIDE = "Run inside the NeMo RL v0.7.0 container: containers/README.md"


def check_local(package: str, found: str | None) -> Check:
    expected = LOCAL[package]
    remedy = f"pip install '{package}{expected}'"
    if package == "python":
        remedy = "Use another Python: make setup PYTHON=/path/to/python3.12"
    severity = OK if found and _is_in(found, expected) else ERROR
    return Check(package, severity, found or "not installed", expected, remedy)


def check_tested(package: str, found: str | None, where: str = "") -> Check:
    """`where` names the environment in the finding's name, for a worker's."""
    name, expected = f"{where}{package}", TESTED[package]
    if found is None:
        others = [each for each in TESTED if each != "nemo-rl"]
        beside = f", so {', '.join(others)} and the workers were not looked at" if name == "nemo-rl" else ""
        return Check(name, ERROR, f"not installed{beside}", expected, _INSIDE)
    accepted = ACCEPTED.get(package)
    if accepted and not _is_in(found, accepted):
        return Check(name, ERROR, found, f"{expected}; NeMo RL refuses all but {accepted}", _INSIDE)
    severity = OK if Version(found).public == expected else WARN  # without the build's label, such as +cu130
    return Check(name, severity, found, f"{expected}, which was tested", f"{_INSIDE}; or run tests/gpu on these")


def worker_python(kind: str, environment: Mapping[str, str]) -> str:
    """As `register_worker` decides it: the parent's prebuilt interpreter if it exists, else this one."""
    python = Path(environment.get("NEMO_RL_VENV_DIR", "/opt/ray_venvs"), WORKERS[kind][1], "bin/python")
    is_own = environment.get("NEMO_RL_PY_EXECUTABLES_SYSTEM") != "1" and python.is_file()
    return str(python) if is_own else sys.executable


def check_worker(kind: str, environment: Mapping[str, str], run: Run) -> Iterator[Check]:
    """The import of our class, then the versions around it. A missing answer is an error, not a pass."""
    python, name, ours = worker_python(kind, environment), f"worker {kind}", WORKERS[kind][0]
    expected = f"{ours} imports in {python}"
    try:
        with slow(f"importing {ours} in {python}, at most {SECONDS:.0f} s"):
            answer = json.loads(run([python, "-P", str(PROBE), ours, *TESTED], SECONDS).strip().splitlines()[-1])
    except (OSError, ValueError, IndexError) as error:
        yield Check(name, ERROR, f"no answer: {error}", expected, f"Run it by hand: {python} -P {PROBE} {ours}")
        return
    problem = answer["import_error"]
    remedy = _INSIDE if python == sys.executable else f"Install what is named into the environment of {python}"
    if "nemo_aopsd" in (problem or ""):
        remedy = "Put this package into that environment: containers/README.md, `Without building an image`"
    yield Check(name, ERROR if problem else OK, problem or "imports", expected, remedy)
    for package in IN_WORKER[kind]:
        yield check_tested(package, answer["versions"].get(package), f"{name}: ")


def _is_in(version: str, accepted: str) -> bool:
    return SpecifierSet(accepted).contains(version, prereleases=True)
