"""Reasoning DAGs: every fault by name, closure and frontier against brute force, one fixed text for one graph."""

import itertools
import os
import subprocess
import sys

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_aopsd.data.dag import (
    Fault,
    build_graph,
    find_faults,
    frontier,
    largest_closed_subset,
    progress,
    serialize,
    transitive_edges,
)
from nemo_aopsd.errors import UserError
from tests import REPO
from tests import raw_graph as raw


@st.composite
def graphs(draw, max_nodes=6):
    """Any DAG of up to `max_nodes` nodes; file order is not topological in general."""
    size = draw(st.integers(1, max_nodes))
    order = draw(st.permutations([f"n{i}" for i in range(size)]))
    pairs = list(itertools.combinations(order, 2))
    edges = [pair for pair in pairs if draw(st.booleans())]
    return build_graph(raw(dict.fromkeys(draw(st.permutations(order)), "text"), edges))


graphs_and_judged = graphs().flatmap(lambda g: st.tuples(st.just(g), st.sets(st.sampled_from(sorted(g)))))


def test_diamond_by_hand():
    graph = build_graph(raw("abcd", ["ab", "ac", "bd", "cd"]))
    assert largest_closed_subset(graph, {"a", "b", "d"}) == {"a", "b"}  # d lacks c
    assert largest_closed_subset(graph, {"b", "c", "d"}) == frozenset()  # nothing without a
    assert largest_closed_subset(graph, "abcd") == set("abcd")
    assert frontier(graph, set()) == {"a"}
    assert frontier(graph, {"a", "b"}) == {"c"}
    assert frontier(graph, {"a"}) == {"b", "c"}
    assert frontier(graph, set("abcd")) == frozenset()
    assert progress(graph, {"a", "b"}) == 0.5


@given(graphs_and_judged)
def test_closure_equals_brute_force_over_all_subsets(drawn):
    graph, judged = drawn
    closed = [
        set(subset)
        for size in range(len(judged) + 1)
        for subset in itertools.combinations(sorted(judged), size)
        if all(set(graph.pred[node]) <= set(subset) for node in subset)
    ]
    assert largest_closed_subset(graph, judged) == max(closed, key=len)


@given(graphs_and_judged)
def test_frontier_is_the_boundary_of_what_is_reached(drawn):
    graph, judged = drawn
    reached = largest_closed_subset(graph, judged)
    ahead = frontier(graph, reached)
    assert not reached & ahead
    assert all(set(graph.pred[node]) <= reached for node in reached | ahead)
    assert all(not set(graph.pred[node]) <= reached for node in set(graph) - reached - ahead)
    assert bool(ahead) == (reached != set(graph))  # a DAG always has a next step until it is done
    assert 0.0 <= progress(graph, reached) <= 1.0
    assert largest_closed_subset(graph, reached) == reached


@given(graphs_and_judged)
def test_serialize_is_topological_and_names_only_what_is_shown(drawn):
    graph, judged = drawn
    lines = serialize(graph, only=judged).split("\n") if judged else []
    shown = [line[1 : line.index("]")] for line in lines]
    assert sorted(shown) == sorted(judged)
    for place, (node, line) in enumerate(zip(shown, lines, strict=True)):
        parents = [parent for parent in graph if parent in graph.pred[node] and parent in judged]  # in file order
        assert set(parents) <= set(shown[:place])
        assert line == f"[{node}] text" + (f" (requires: {', '.join(parents)})" if parents else "")


def test_serialize_by_hand():
    graph = build_graph(raw({"3": "c", "2": "b", "1": "a"}, [("2", "3"), ("1", "3")]))
    assert serialize(graph) == "[2] b\n[1] a\n[3] c (requires: 2, 1)"
    assert serialize(graph, {"2": "reached"}) == "[2] b reached\n[1] a\n[3] c (requires: 2, 1)"
    assert serialize(graph, {"2": "reached", "3": "next"}, only={"2", "3"}) == "[2] b reached\n[3] c (requires: 2) next"


def test_serialize_does_not_depend_on_the_hash_seed():
    """networkx iterates over a small subgraph in the order of a set."""
    script = (
        "from nemo_aopsd.data.dag import build_graph, serialize\n"
        "nodes = [{'id': f'n{i}', 'statement': 's'} for i in range(20)]\n"
        "print(serialize(build_graph({'nodes': nodes, 'edges': []}), only={'n1', 'n2', 'n3', 'n4'}))"
    )
    for seed in "01":
        run = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=REPO,
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout == "[n1] s\n[n2] s\n[n3] s\n[n4] s\n"


def test_closure_refuses_an_unknown_id():
    with pytest.raises(ValueError, match=r"\['z'\] are not checkpoints"):
        largest_closed_subset(build_graph(raw("ab")), {"a", "z"})


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (raw(""), Fault("empty_graph", "no checkpoint")),
        (raw({" ": "fact"}), Fault("empty_id", "node 0")),
        (raw({"a": "fact", "b": " \n"}), Fault("empty_statement", "node 'b'")),
        (
            {"nodes": [{"id": "a", "statement": "x"}, {"id": "a", "statement": "y"}], "edges": []},
            Fault("duplicate_id", "'a' used 2 times"),
        ),
        (raw("a", ["ab"]), Fault("dangling_edge", "'a' -> 'b': no node 'b'")),
        (raw("a", ["xy"]), Fault("dangling_edge", "'x' -> 'y': no node 'x', 'y'")),
        (raw("a", ["aa"]), Fault("self_loop", "'a' -> 'a'")),
        (raw("abc", ["ab", "bc", "cb"]), Fault("cycle", "b -> c -> b")),
        (raw("ab", ["ab", "ab"]), Fault("duplicate_edge", "'a' -> 'b' listed 2 times", is_error=False)),
        (
            raw("abc", ["ab", "bc", "ac"]),
            Fault("transitive_edge", "'a' -> 'c' follows from a longer path", is_error=False),
        ),
        ([], Fault("malformed", 'expected {"nodes": [...], "edges": [...]}')),
        ({"nodes": [], "edges": {}}, Fault("malformed", "`nodes` and `edges` must be lists")),
        (
            {"nodes": [{"id": 1, "statement": "x"}], "edges": []},
            Fault("malformed", "node 0: expected string `id` and `statement`, got {'id': 1, 'statement': 'x'}"),
        ),
        (
            {"nodes": [{"id": "a", "statement": "x"}], "edges": [["a"]]},
            Fault("malformed", "edge 0: expected [prerequisite, dependent], got ['a']"),
        ),
    ],
)
def test_every_fault_by_kind_and_ids(record, expected):
    assert find_faults(record) == [expected]
    if expected.is_error:
        with pytest.raises(UserError) as caught:
            build_graph(record, where="problems.jsonl:7")
        assert str(caught.value).startswith("problems.jsonl:7: unusable reasoning DAG: " + expected.kind)
        assert expected.detail in str(caught.value)
    else:
        assert build_graph(record).number_of_nodes() == len(record["nodes"])


def test_all_errors_come_at_once_and_before_warnings():
    kinds = [fault.kind for fault in find_faults(raw({"a": "x", "b": ""}, ["ab", "ab", "az", "bb"]))]
    assert kinds == ["empty_statement", "dangling_edge", "self_loop", "duplicate_edge"]


@given(graphs())
def test_transitive_edges_equal_networkx_reduction(graph):
    redundant = set(graph.edges) - set(nx.transitive_reduction(graph).edges)
    faults = find_faults(raw(graph, graph.edges))
    details = {fault.detail for fault in faults if fault.kind == "transitive_edge"}
    assert details == {f"{u!r} -> {v!r} follows from a longer path" for u, v in redundant}


def test_ten_thousand_checkpoints_cost_one_look_at_each_edge():
    """Chains are the worst case for ancestor sets; a search along paths would look at an edge thousands of times."""
    size, looks = 10_000, 0

    class Counted(nx.DiGraph):
        @property
        def pred(self):
            nonlocal looks
            looks += 1
            return super().pred

    graph = Counted([(node - back, node) for node in range(size) for back in (1, 2, 3) if node >= back])
    redundant = transitive_edges(graph)
    assert len(redundant) == graph.number_of_edges() - (size - 1) and looks <= 5 * size
