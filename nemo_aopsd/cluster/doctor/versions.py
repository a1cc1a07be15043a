"""Installed versions against the tested matrix: the `nemo` extra of pyproject.toml and docs/verification.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nemo_aopsd.cluster.doctor.result import ERROR, OK, WARN, Check

PYTHON = ((3, 11), (3, 13))  # oldest, newest; requires-python
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
# The driver imports these; the rest is at home in the workers' environments (`workers.py`).
DRIVER = ("nemo-rl", "ray", "torch", "transformers")
WORKERS = {
    "vllm": ("torch", "transformers", "vllm"),
    "megatron": ("torch", "transformers", "megatron-core", "megatron-bridge", "transformer-engine"),
    "dtensor": ("torch", "transformers"),
}
_TRANSFORMERS = ((5, 4), (5, 12))  # NeMo RL v0.7.0 refuses others: models/policy/__init__.py
_INSIDE = "Run inside the NeMo RL v0.7.0 container: containers/README.md"


def check_python(found: Mapping[str, str]) -> Check:
    oldest, newest = (".".join(map(str, bound)) for bound in PYTHON)
    fits = PYTHON[0] <= _numbers(found["python"])[:2] <= PYTHON[1]
    remedy = "" if fits else "Use another Python: make setup PYTHON=/path/to/python3.12"
    return Check("python", OK if fits else ERROR, found["python"], f"{oldest} to {newest}", remedy)


def check_local(found: Mapping[str, str]) -> Iterator[Check]:
    """What the local engine stands on."""
    for package, oldest in (("torch", "2.11"), ("transformers", "5")):
        have = found.get(package)
        fits = have is not None and _numbers(have) >= _numbers(oldest)
        remedy = "" if fits else f"pip install '{package}>={oldest}'"
        yield Check(package, OK if fits else ERROR, have or "not installed", f"at least {oldest}", remedy)


def check_cluster_absent(found: Mapping[str, str]) -> Check:
    """For a local config, or none: nothing asks for NeMo RL."""
    missing = ", ".join(name for name in TESTED if name not in found)
    return Check("nemo-rl", OK, f"not here: {missing}", "needed for aopsd.engine=nemo_rl only")


def check_driver(found: Mapping[str, str]) -> Iterator[Check]:
    for package in DRIVER:
        yield check_package(package, found.get(package))


def check_package(package: str, found: str | None, where: str = "") -> Check:
    """`where` names the environment in the finding's name, for a worker's."""
    name, expected = f"{where}{package}", TESTED[package]
    if found is None:
        return Check(name, ERROR, "not installed", expected, _INSIDE)
    if package == "transformers" and not _TRANSFORMERS[0] <= _numbers(found)[:2] < _TRANSFORMERS[1]:
        return Check(name, ERROR, found, f"{expected}; NeMo RL refuses all but 5.4 to 5.11", _INSIDE)
    if _public(found) == expected:
        return Check(name, OK, found, expected)
    return Check(name, WARN, found, f"{expected}, which was tested", f"{_INSIDE}; or run tests/gpu on these versions")


def _public(version: str) -> str:
    """Without the build's label, such as `+cu130`."""
    return version.partition("+")[0]


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers: `5.8.1rc1` is (5, 8), `?` is ().

    >>> _numbers("2.11.0+cu130"), _numbers("?")
    ((2, 11, 0), ())
    """
    numbers = []
    for part in _public(version).split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
