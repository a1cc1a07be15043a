"""Drawings of graphs: where boxes and edges lie, what the SVG says, and graphs with faults."""

import itertools
import re
import xml.etree.ElementTree as ET

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from nemo_aopsd.data.check import find_row
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_jsonl
from nemo_aopsd.graphs.layout import GAP_X, lay_out, without_cycles
from nemo_aopsd.graphs.picture import draw, draw_svg, drawable, states, text_width
from tests import raw_graph, shared

SVG = "{http://www.w3.org/2000/svg}"


def graph_of(num_nodes: int, edges=(), statement=lambda node: f"value {node}") -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from((str(node), {"statement": statement(node)}) for node in range(num_nodes))
    graph.add_edges_from((str(u), str(v)) for u, v in edges)
    return graph


def texts(document: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(document).iter(f"{SVG}text")]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), unique=True), st.data())
@settings(max_examples=60, deadline=None)
def test_any_graph_is_laid_out_downward_and_nothing_overlaps(pairs, data):
    """Cycles are turned around first, and edges that are part of none are left as they are."""
    graph = graph_of(10, pairs)
    acyclic = without_cycles(graph)
    assert nx.is_directed_acyclic_graph(acyclic) and list(acyclic) == list(graph)
    plain = {(u, v) for u, v in graph.edges if u != v}
    assert {frozenset(edge) for edge in acyclic.edges} == {frozenset(edge) for edge in plain}
    if nx.is_directed_acyclic_graph(nx.DiGraph(plain)):
        assert set(acyclic.edges) == plain
    sizes = {node: (data.draw(st.floats(20, 200)), data.draw(st.floats(20, 90))) for node in graph}
    slots, chains = lay_out(acyclic, sizes)
    for one, other in itertools.combinations(slots.values(), 2):
        if one.y == other.y:  # of one layer
            assert abs(one.x - other.x) >= (one.width + other.width) / 2 + GAP_X - 1e-6
    assert sorted((chain[0], chain[-1]) for chain in chains) == sorted(acyclic.edges)
    for upper, lower in (pair for chain in chains for pair in itertools.pairwise(slots[key] for key in chain)):
        assert upper.y + upper.height < lower.y


def test_long_edge_runs_past_the_boxes_between():
    slots, _ = lay_out(graph_of(3, [(0, 1), (1, 2), (0, 2)]), {str(node): (50.0, 20.0) for node in range(3)})
    crossing = slots[("0", "2", 1)]
    assert crossing.y == slots["1"].y
    assert abs(crossing.x - slots["1"].x) >= 25 + GAP_X


def test_root_stands_just_above_what_needs_it():
    slots, _ = lay_out(graph_of(4, [(0, 1), (1, 2), (3, 2)]), {str(node): (50.0, 20.0) for node in range(4)})
    assert slots["3"].y == slots["1"].y > slots["0"].y


@pytest.mark.parametrize(
    "edges",
    [[(n, (n + 1) % 3000) for n in range(3000)], [(n, m) for n in range(60) for m in range(n + 1, 60)]],
    ids=["cycle", "every pair"],
)
def test_too_large_graphs_are_refused(tmp_path, edges):
    graph = graph_of(max(max(edge) for edge in edges) + 1, edges)
    with pytest.raises(UserError, match="aopsd dag browse"):
        draw(graph, tmp_path / "graph.svg")
    with pytest.raises(UserError, match=r"Name it graph\.svg"):
        draw(graph_of(1), tmp_path / "graph.png")
    assert list(tmp_path.iterdir()) == []


def test_states_by_hand():
    graph = graph_of(5, [(0, 2), (1, 2), (2, 3)])
    expected = ["reached", "reached", "next", "later", "next"]
    assert states(graph, frozenset({"0", "1"})) == dict(zip(graph, expected, strict=True))
    boxes = ET.fromstring(draw_svg(graph, reached=frozenset({"0", "1"}))).findall(f".//{SVG}g[@fill]")
    assert [box.attrib["class"] for box in boxes] == [f"node {state}" for state in expected]
    assert [[line.text for line in box.iter(f"{SVG}text")][:2] for box in boxes] == [
        [f"[{node}]", state] for node, state in zip(graph, expected, strict=True)
    ]


def test_statements_are_whole_and_dollars_and_commands_stay():
    long = " ".join(f"term{number}" for number in range(50))
    statements = [r"$\frac{1}{2}$ costs $5 & a < b", long, r"\left(\sum_{k} x^{2}\right", "a" * 200]
    statements.append(r"x=" + r"\angle" * 40)
    shown = texts(draw_svg(graph_of(5, [(0, 1)], statements.__getitem__), title="t $1 <b>"))
    joined = " ".join(shown)
    assert statements[0] in joined and statements[2] in joined and long in joined and shown[0] == "t $1 <b>"
    assert "a" * 200 in joined.replace(" ", "")
    lines = [text for text in shown if r"\angle" in text]
    assert "".join(lines) == statements[-1] and all(len(line) <= 42 for line in lines)
    assert all(line.removeprefix("x=").replace(r"\angle", "") == "" for line in lines)


def test_long_ids_show_both_ends_and_characters_that_xml_forbids_are_replaced():
    graph = nx.DiGraph()
    graph.add_node("a" * 300 + "z", statement="\U0001f600 bell \a, \x00 \x85 \ufffe \ud800 世")
    shown = texts(draw_svg(graph, title="\x1b[0m"))
    assert shown[0] == "\ufffd[0m" and "\U0001f600 bell \ufffd, \ufffd \ufffd \ufffd 世" in shown
    assert "[" + "a" * 20 + "…" + "a" * 19 + "z]" in shown


@pytest.mark.parametrize("line", ["WWWWWWWW mmmm iii", "wholly ordinary words", "f(x) = 3x^2 + 7", "ALL CAPITALS 0123"])
def test_boxes_are_wide_enough_for_their_text(line):
    """As matplotlib measures it, in the font that the drawing asks for first."""
    width, _, _ = text_to_path.get_text_width_height_descent(line, FontProperties("DejaVu Sans", size=9.5), False)
    assert width <= text_width(line) <= 1.4 * width
    [box] = ET.fromstring(draw_svg(graph_of(1, [], lambda _: line))).findall(f".//{SVG}g[@fill]")
    [outline] = box.findall(f"{SVG}rect")
    right = float(outline.attrib["x"]) + float(outline.attrib["width"])
    assert all(float(text.attrib["x"]) + text_width(line) <= right for text in box.findall(f"{SVG}text")[2:])


# The ends of each edge that have a tip, and whether it is dashed.
FAULTY = {
    "cycle": (raw_graph("abc", ["ab", "bc", "ca"]), [("end", False), ("end", False), ("start", True)]),
    "two that require each other": (raw_graph("ab", ["ab", "ba"]), [("end start", True)]),
    "self loop": (raw_graph("ab", ["ab", "bb"]), [("end", False), ("start", True)]),
    "unknown id": (raw_graph("a", ["za"]), [("end", False)]),
    "repeated id": (raw_graph("aab", ["ab"]), [("end", False)]),
    "empty statement and id": (raw_graph({"": "", "b": " "}, [["", "b"]]), [("end", False)]),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_graphs_are_drawn_with_what_is_wrong_dashed(name):
    raw, expected = FAULTY[name]
    edges = ET.fromstring(draw_svg(drawable(raw, "file:1"))).findall(f".//{SVG}path[@class]")
    tips = [" ".join(sorted(key.removeprefix("marker-") for key in edge.attrib if "marker" in key)) for edge in edges]
    assert sorted(zip(tips, ["stroke-dasharray" in edge.attrib for edge in edges], strict=True)) == expected


def test_nothing_of_the_file_is_lost_by_drawing():
    graph = drawable(raw_graph(["a", "a", "a (2)", "b"], ["ab", "zb", "bb", ["a (3)", "b"]]), "file:1")
    assert list(graph) == ["a", "a (4)", "a (2)", "b", "z", "a (3)"]
    assert set(graph.edges) == {("a", "b"), ("z", "b"), ("b", "b"), ("a (3)", "b")}
    expected = ["next", "next", "next", "later", "unknown", "unknown"]
    assert states(graph, frozenset()) == dict(zip(graph, expected, strict=True))


def test_shared_graphs_with_faults_are_drawn():
    data = shared("dag_examples.jsonl")
    faulty = [record for _, record in read_jsonl(data) if record["faults"] and len(record["dag"]["nodes"]) < 50]
    assert {kind for record in faulty for kind in record["faults"]} >= {"dangling_edge", "self_loop", "duplicate_edge"}
    for record in faulty:
        row, raw, broken = find_row(data, record["id"])
        assert not broken and {fault.kind for fault in row.faults} >= set(record["faults"])
        document = draw_svg(drawable(raw, row.where))
        assert len(re.findall('class="node', document)) >= len(record["dag"]["nodes"])
