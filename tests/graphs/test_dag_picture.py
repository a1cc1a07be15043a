import itertools
import json
import xml.etree.ElementTree as ET

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.patches import FancyArrowPatch
from PIL import Image

from nemo_aopsd.data.check import find_row
from nemo_aopsd.data.dag import find_faults
from nemo_aopsd.errors import UserError
from nemo_aopsd.graphs import picture as dag_picture
from nemo_aopsd.graphs.faulty import back_edges, drawable, without_cycles
from nemo_aopsd.graphs.layout import GAP_X, lay_out
from tests import SHARED

DATA = SHARED / "dag_examples.jsonl"


def graph_of(num_nodes: int, edges=(), statement=lambda node: f"value {node}") -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from((str(node), {"statement": statement(node)}) for node in range(num_nodes))
    graph.add_edges_from((str(u), str(v)) for u, v in edges)
    return graph


@st.composite
def graphs(draw):
    size = draw(st.integers(1, 14))
    pairs = list(itertools.combinations(range(size), 2))
    return graph_of(size, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else [])


@given(graphs(), st.data())
@settings(max_examples=40, deadline=None)
def test_layout_points_down_and_nothing_overlaps(graph, data):
    sizes = {node: (data.draw(st.floats(20, 200)), data.draw(st.floats(20, 90))) for node in graph}
    slots, chains = lay_out(graph, sizes)
    assert set(graph) <= set(slots)
    for u, v in graph.edges:
        assert slots[u].y + slots[u].height < slots[v].y
    for one, other in itertools.combinations(slots.values(), 2):
        if one.y == other.y:  # of one layer
            assert abs(one.x - other.x) >= (one.width + other.width) / 2 + GAP_X - 1e-6
    assert sorted((chain[0], chain[-1]) for chain in chains) == sorted(graph.edges)
    for chain in chains:
        assert all(upper.y < lower.y for upper, lower in itertools.pairwise(slots[key] for key in chain))


def test_long_edge_runs_past_the_boxes_between():
    slots, _ = lay_out(graph_of(3, [(0, 1), (1, 2), (0, 2)]), {str(node): (50.0, 20.0) for node in range(3)})
    crossing = slots[("0", "2", 1)]
    assert crossing.y == slots["1"].y
    assert abs(crossing.x - slots["1"].x) >= 25 + GAP_X


@pytest.mark.parametrize(
    "edges",
    [
        [(n, (n + 1) % 3000) for n in range(3000)],
        [(n, m) for n in range(60) for m in range(n + 1, 60)],
        [(0, n) for n in range(1, 250)],
    ],
    ids=["cycle", "every pair", "wide layer"],
)
def test_too_large_graphs_are_refused(tmp_path, edges):
    graph = graph_of(max(max(edge) for edge in edges) + 1, edges)
    with pytest.raises(UserError, match=r"too many for a picture.*aopsd dag browse"):
        dag_picture.draw(graph, tmp_path / "graph.svg")
    assert list(tmp_path.iterdir()) == []


def test_long_ids_are_shortened_and_commands_stay_whole():
    graph = nx.DiGraph()
    graph.add_node("a" * 300 + "z", statement=r"x=" + r"\angle" * 40)
    texts = svg_texts(dag_picture.draw_svg(graph))
    assert [text for text in texts if text.startswith("[")] == ["[" + "a" * 20 + "…" + "a" * 19 + "z]  next"]
    lines = [text for text in texts if r"\angle" in text]
    assert "".join(lines) == r"x=" + r"\angle" * 40 and all(len(line) <= 42 for line in lines)
    assert all(line.removeprefix("x=").replace(r"\angle", "") == "" for line in lines)


def test_states_by_hand():
    graph = graph_of(5, [(0, 2), (1, 2), (2, 3)])
    assert dag_picture.states(graph, frozenset({"0", "1"})) == {
        "0": "reached",
        "1": "reached",
        "2": "next",
        "3": "later",
        "4": "next",
    }


def svg_texts(document: str) -> list[str]:
    return [element.text for element in ET.fromstring(document).iter("{http://www.w3.org/2000/svg}text")]


def test_statements_are_whole_and_dollars_stay():
    long = " ".join(f"term{number}" for number in range(50))
    assert len(long) > 300
    statements = [r"$\frac{1}{2}$ costs $5 & a < b", long, r"\left(\sum_{k} x^{2}\right", "a" * 200]
    document = dag_picture.draw_svg(graph_of(4, [(0, 1)], statements.__getitem__), reached=frozenset("0"), title="t $1")
    joined = " ".join(svg_texts(document))
    assert statements[0] in joined and statements[2] in joined
    assert long in joined
    assert "a" * 200 in joined.replace(" ", "")
    assert "t $1" in joined


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_any_character_is_drawn_without_a_word(tmp_path, suffix):
    graph = graph_of(2, [(0, 1)], lambda node: "\U0001f600 bell \a, \x00 \x85 \ufffe 世")
    dag_picture.draw(graph, tmp_path / f"graph{suffix}", title="\U0001f600\x1b[0m")
    if suffix == ".png":
        with Image.open(tmp_path / "graph.png") as image:
            assert image.width > 300 and len(image.convert("RGB").getcolors(1 << 24)) > 10
    if suffix == ".svg":
        assert "\U0001f600 bell \ufffd, \ufffd \ufffd 世" in svg_texts((tmp_path / "graph.svg").read_text())


def test_state_is_told_in_words_too():
    texts = svg_texts(dag_picture.draw_svg(graph_of(3, [(0, 1), (1, 2)]), reached=frozenset("0")))
    heads = [" ".join(text.split()) for text in texts if text.startswith("[")]
    assert heads == ["[0] reached", "[1] next", "[2] later"]


def test_boxes_contain_their_text():
    """The widest line of each box, as drawn by the renderer that measured it, ends inside the box."""
    graph = graph_of(3, [(0, 1)], lambda node: "WWWWWWWW mmmm " * (node + 1) + "iii")
    with dag_picture.svg.style():
        figure = dag_picture._figure(graph, frozenset(), "")
    axes = figure.axes[0]
    renderer = figure.canvas.get_renderer()
    boxes = [patch.get_window_extent(renderer) for patch in axes.patches if hasattr(patch, "get_boxstyle")]
    bodies = [text for text in axes.texts if text.get_text().startswith("WWW")]
    assert len(bodies) == 3
    for text in bodies:
        extent = text.get_window_extent(renderer)
        assert any(
            box.x0 <= extent.x0 and extent.x1 <= box.x1 and box.y0 <= extent.y0 and extent.y1 <= box.y1 for box in boxes
        )


@pytest.mark.parametrize("name", ["graph.gif", "graph"])
def test_other_suffix_is_a_user_error(tmp_path, name):
    with pytest.raises(UserError, match=r"\.svg, \.png"):
        dag_picture.draw(graph_of(1), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_equal_graphs_give_equal_files():
    graph = graph_of(5, [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)])
    assert dag_picture.draw_svg(graph) == dag_picture.draw_svg(graph.copy())


# Graphs with faults


def raw_of(nodes, *edges):
    return {"nodes": [{"id": node, "statement": f"fact {node}"} for node in nodes], "edges": [list(e) for e in edges]}


def edges_drawn(graph):
    """(arrow style, is dashed) of each edge, in no order."""
    with dag_picture.svg.style():
        figure = dag_picture._figure(graph, frozenset(), "")
    arrows = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    return sorted((type(arrow.get_arrowstyle()).__name__, arrow.get_linestyle() != "-") for arrow in arrows)


FAULTY = {
    "cycle": (raw_of("abc", "ab", "bc", "ca"), [("CurveFilledA", True), ("CurveFilledB", False)]),
    "two that require each other": (raw_of("ab", "ab", "ba"), [("CurveFilledAB", True)]),
    "self loop": (raw_of("ab", "ab", "bb"), [("CurveFilledB", False), ("CurveFilledB", True)]),
    "unknown id": (raw_of("a", "za"), [("CurveFilledB", False)]),
    "repeated id": (raw_of("aab", "ab"), [("CurveFilledB", False)]),
    "empty statement and id": (
        {"nodes": [{"id": "", "statement": ""}, {"id": "b", "statement": " "}], "edges": [["", "b"]]},
        [("CurveFilledB", False)],
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_graphs_are_drawn_with_their_faults(tmp_path, name):
    raw, edges = FAULTY[name]
    faults = find_faults(raw)
    assert faults
    graph = drawable(raw, "file:1")
    assert sorted(set(edges_drawn(graph))) == edges
    for suffix in dag_picture.SUFFIXES:
        dag_picture.draw(graph, tmp_path / f"graph{suffix}", title="t", faults=faults)
    texts = svg_texts((tmp_path / "graph.svg").read_text())
    assert [f"{fault.kind}: {dag_picture._visible(fault.detail)}" in texts for fault in faults] == [True] * len(faults)


def test_nothing_of_the_file_is_lost_by_drawing():
    graph = drawable(raw_of(["a", "a", "a (2)", "b"], "ab", "zb", "bb"), "file:1")
    assert list(graph) == ["a", "a (3)", "a (2)", "b", "z"]
    assert set(graph.edges) == {("a", "b"), ("z", "b"), ("b", "b")}
    assert dag_picture.states(graph, frozenset()) == dict(
        zip(graph, ["next", "next", "next", "later", "unknown"], strict=True)
    )


def test_many_faults_do_not_dwarf_the_picture():
    raw = raw_of("a", *[[f"z{number}", "a"] for number in range(40)])
    with dag_picture.svg.style():
        figure = dag_picture._figure(drawable(raw, "file:1"), frozenset(), "", find_faults(raw))
        texts = svg_texts(dag_picture.svg.to_svg(figure))
    assert len([text for text in texts if text.startswith("dangling_edge")]) == 12 and "and 28 more" in texts


def test_edges_start_at_the_checkpoint_that_has_their_id():
    raw = raw_of(["a", "a", "a", "a (2)"], ["a (2)", "a"], ["a (3)", "a"])
    raw["nodes"][3]["statement"] = "the real one"
    graph = drawable(raw, "file:1")
    assert graph.nodes["a (2)"]["statement"] == "the real one" and graph.nodes["a (3)"]["is_unknown"]
    assert list(graph) == ["a", "a (4)", "a (5)", "a (2)", "a (3)"]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), unique=True))
@settings(max_examples=60, deadline=None)
def test_any_graph_has_layers_once_its_back_edges_are_turned(pairs):
    graph = graph_of(8, pairs)
    acyclic = without_cycles(graph)
    assert nx.is_directed_acyclic_graph(acyclic) and list(acyclic) == list(graph)
    plain = {(u, v) for u, v in graph.edges if u != v}
    assert {frozenset(edge) for edge in acyclic.edges} == {frozenset(edge) for edge in plain}
    loops = {(u, v) for u, v in graph.edges if u == v}
    if nx.is_directed_acyclic_graph(nx.DiGraph(plain)):
        assert set(back_edges(graph)) == loops and set(acyclic.edges) == plain


def test_shared_graphs_with_faults_are_drawn(tmp_path):
    if not DATA.exists():
        pytest.skip(f"{DATA} is not there")
    records = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    faulty = [record for record in records if record["faults"] and len(record["dag"]["nodes"]) < 50]
    assert {kind for record in faulty for kind in record["faults"]} >= {"dangling_edge", "self_loop", "duplicate_edge"}
    for record in faulty:
        row, raw, broken = find_row(DATA, record["id"])
        assert not broken and {fault.kind for fault in row.faults} >= set(record["faults"])
        dag_picture.draw(drawable(raw, row.where), tmp_path / "graph.svg", faults=row.faults)
        heads = [text for text in svg_texts((tmp_path / "graph.svg").read_text()) if text.startswith("[")]
        assert len(heads) >= len(record["dag"]["nodes"])
