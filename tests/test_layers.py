"""Who may import whom, proved on the source; and how light and quick the commands are that need no model."""

import ast
import itertools
import resource
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
PACKAGE = REPO / "nemo_aopsd"
ENGINES = "nemo_aopsd.engines"
CLUSTER = {"ray", "vllm", "megatron", "nemo_rl", "transformer_engine"}
HEAVY = {"torch", "transformers", "numpy", "matplotlib", "sympy"}
LIGHT = [
    "engines.local",
    "config",
    "config_files",
    "data",
    "dag",
    "context",
    "judge",
    "prompts",
    "preflight",
    "run_folder",
    "cli",
]
PROBLEM = '{"id": "p", "problem": "?", "answer": "1", "dag": {"nodes": [{"id": "a", "statement": "x"}], "edges": []}}'


def imports_of(source, module):
    """Full names of everything that a module imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def breaches(module, imported):
    """The rules, as (module, name) pairs that break one."""

    def within(name, package):
        return name == package or name.startswith(f"{package}.")

    for name in sorted(imported):
        top = name.split(".")[0]
        of_vllm = top == "vllm" and within(module, f"{ENGINES}.vllm_only")
        if top in CLUSTER and not (of_vllm or within(module, f"{ENGINES}.nemo_rl")):
            yield module, name
        command = module.startswith("nemo_aopsd.cli.app")  # cli, and the cli_* modules that it mounts
        if within(name, ENGINES) and not within(module, ENGINES) and module != "nemo_aopsd.cli.app":
            yield module, name
        for one, other in itertools.permutations(("local", "nemo_rl", "vllm_only"), 2):
            if within(module, f"{ENGINES}.{one}") and within(name, f"{ENGINES}.{other}"):
                yield module, name
        if name.startswith("nemo_aopsd.cli.app") and not command:
            yield module, name


def test_imports_go_downward_only():
    files = {
        ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    assert {"nemo_aopsd.cli.app", "nemo_aopsd.method.step", "nemo_aopsd.engines.local"} <= set(files)
    found = [
        breach
        for module, path in files.items()
        for breach in breaches(module, imports_of(path.read_text(encoding="utf-8"), module))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("nemo_aopsd.method.step", "from nemo_aopsd.engines import local"),
        ("nemo_aopsd.method.step", "def f():\n    import nemo_aopsd.engines.local.engine"),
        ("nemo_aopsd.method.step", "from .engines import local"),
        ("nemo_aopsd.method.objectives.pg", "from ..engines.local import build"),
        ("nemo_aopsd.method.step", "import ray"),
        ("nemo_aopsd.cli.app", "from vllm import LLM"),
        ("nemo_aopsd.engines.local.engine", "from megatron.core import parallel_state"),
        ("nemo_aopsd.engines.local.engine", "from nemo_aopsd.engines.nemo_rl import policy"),
        ("nemo_aopsd.engines.nemo_rl.policy", "from nemo_aopsd.engines.local import build"),
        ("nemo_aopsd.method.step", "from nemo_aopsd import cli"),
        ("nemo_aopsd.method.step", "from nemo_aopsd.cli.data import mount"),
        ("nemo_aopsd.cli.data", "from nemo_aopsd.engines import local"),
        ("nemo_aopsd.cli.evaluate", "from nemo_aopsd.engines import vllm_only"),
        ("nemo_aopsd.engines.vllm_only.worker", "import ray"),
        ("nemo_aopsd.engines.vllm_only.worker", "from nemo_aopsd.engines.local import build"),
    ],
)
def test_the_rules_catch_a_breach(module, line):
    assert list(breaches(module, imports_of(line, module)))


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("nemo_aopsd.cli.app", "from nemo_aopsd.engines import local"),
        ("nemo_aopsd.engines.nemo_rl.policy", "import ray, nemo_rl.models"),
        ("nemo_aopsd.engines.vllm_only.worker", "from vllm import LLM"),
        ("nemo_aopsd.engines.local.engine", "from nemo_aopsd.engines.local.kv import Cache"),
        ("nemo_aopsd.method.step", "from nemo_aopsd.engine import Engine"),
    ],
)
def test_the_rules_allow_what_they_should(module, line):
    assert not list(breaches(module, imports_of(line, module)))


def modules_after(statement):
    code = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_stay_light(name):
    assert not modules_after(f"import nemo_aopsd, nemo_aopsd.{name}") & (HEAVY | CLUSTER)


def test_checking_a_whole_config_loads_no_model_library(tmp_path):
    (tmp_path / "problems.jsonl").write_text(PROBLEM)
    (tmp_path / "run.yaml").write_text(
        "policy: {model_name: m, max_total_sequence_length: 999, generation: {max_new_tokens: 4}}\n"
        f"data: {{train: {{data_path: {tmp_path}/problems.jsonl}}}}\nlogger: {{log_dir: {tmp_path}/run}}\n"
    )
    statement = (
        "from nemo_aopsd.config.load import load_config\nfrom nemo_aopsd.run.preflight import check_inputs\n"
        f"assert len(check_inputs(load_config({str(tmp_path / 'run.yaml')!r}))[0]) == 1"
    )
    assert not modules_after(statement) & (HEAVY | CLUSTER)


@pytest.mark.parametrize("command", [["--help"], ["train", "--help"], ["dag", "check", "problems.jsonl"]])
def test_commands_without_a_model_start_at_once(command, tmp_path):
    (tmp_path / "problems.jsonl").write_text(PROBLEM)
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        line = [sys.executable, "-c", "from nemo_aopsd.cli import main; main()", *command]
        subprocess.run(line, cwd=tmp_path, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 1.0  # of CPU, which other work on the machine stretches little; about 0.4 alone
