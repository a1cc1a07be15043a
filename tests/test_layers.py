"""Who may import whom, as a rule about folders; and what stays light and quick because no model is needed."""

import ast
import subprocess
import sys

import networkx as nx
import pytest

from tests import REPO

PACKAGE = REPO / "nemo_aopsd"
CLUSTER = {"ray", "vllm", "megatron", "nemo_rl", "transformer_engine"}
HEAVY = {"torch", "transformers", "numpy", "matplotlib", "sympy"}
ON_A_CLUSTER = ("engines/nemo_rl", "engines/vllm_only", "baselines")  # folders that may import what only it has
LIGHT = ("config.load", "data.problems", "method.context", "method.judge", "run.preflight", "run.folder", "cli.app")
PROBLEM = '{"id": "p", "problem": "?", "answer": "1", "dag": {"nodes": [{"id": "a", "statement": "x"}], "edges": []}}'


def imports(path):
    """Full names of all that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not getattr(node, "level", 0), f"{path}: relative import"
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(name):
    """`method` of nemo_aopsd.method.step; an engine is a room of its own."""
    parts = name.split(".")[1:]
    return "/".join(parts[:2]) if parts[0] == "engines" and len(parts) > 1 else parts[0]


def test_folders_import_downward_only_and_the_cluster_stays_in_its_rooms():
    graph = nx.DiGraph()
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE).as_posix()
        own = room("nemo_aopsd." + inside.removesuffix("/__init__.py").removesuffix(".py").replace("/", "."))
        for name in imports(path):
            top = name.split(".")[0]
            assert top not in CLUSTER or inside.startswith(ON_A_CLUSTER), f"{inside} imports {top}"
            if top == "nemo_aopsd" and room(f"{name}.") != own:
                graph.add_edge(own, room(name))
    assert list(nx.simple_cycles(graph)) == []
    assert set(graph.predecessors("engines")) == {"cli"}  # the only place that picks an engine
    for engine in (node for node in graph if node.startswith("engines/")):
        assert set(graph.predecessors(engine)) <= {"engines"}
    assert set(graph.predecessors("cli")) == {"__main__"}  # the command itself


@pytest.mark.parametrize("statement", [*(f"import nemo_aopsd.{name}" for name in LIGHT), "import nemo_aopsd"])
def test_what_needs_no_model_loads_no_model_library(statement, tmp_path):
    code = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not set(loaded) & (HEAVY | CLUSTER)
