import json
import re

import pytest

from nemo_aopsd.files import write_jsonl
from nemo_aopsd.graphs.browser import write_browser
from tests import raw_graph
from tests.browser import in_browser, needs_browser

EVIL = "</script><script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\"> \u2028 & <!--"


def row(problem_id, statements, *edges, **more):
    graph = raw_graph({str(index): text for index, text in enumerate(statements, start=1)}, edges)
    return {"id": problem_id, "problem": f"Problem {problem_id}", "answer": "7", "dag": graph} | more


ROWS = [
    row("diamond", ["apple", "pear", "plum", "cherry"], "12", "13", "24", "34", plan=["walk"], subproblems=["where?"]),
    row("cycle", ["one", "two"], "12", "21"),
    row(EVIL, [EVIL, r"\frac{1}{2} apple"], "12", answer=EVIL, plan=[EVIL]),
    {"id": "bare", "problem": "no graph", "answer": "7"},
    row("many", [f"fact {number}" for number in range(301)], ["1", "2"]),  # too many for a drawing
]


@pytest.fixture
def page(tmp_path):
    source = tmp_path / "dags.jsonl"
    write_jsonl(source, ROWS)
    assert write_browser(source, tmp_path / "page.html") == (4, [])
    return tmp_path / "page.html"


def embedded(page):
    return json.loads(re.findall(r'type="application/json">(.*?)</script>', page.read_text(encoding="utf-8"))[0])


def test_page_holds_all_and_refers_to_nothing_outside(page):
    text = page.read_text(encoding="utf-8")
    assert text.count("<script") == 2 and "hacked'</script>" not in text
    assert not re.search(r'(?:src|href)\s*=\s*"(?!data:)', text)
    diamond, cycle, evil, many = embedded(page)
    assert diamond["drawing"].count('class="node') == 4 and diamond["plan"] == ["walk"]
    assert cycle["faults"] == ["cycle: 1 -> 2 -> 1"] and cycle["edges"] == [["1", "2"], ["2", "1"]]
    assert evil["id"] == evil["answer"] == EVIL and "<script" not in evil["drawing"]
    assert "drawing" not in many and len(many["nodes"]) == 301


def test_rows_that_cannot_be_read_are_counted_and_stop_nothing(tmp_path):
    source = tmp_path / "d.jsonl"
    rows = [row("odd", ["a"], plan="walk", subproblems=7), row("leak", ["a", "x = 0.5"], "12", answer="1/2")]
    source.write_text("\n".join(["{", *map(json.dumps, rows), "[1]"]))
    count, broken = write_browser(source, tmp_path / "page.html")
    assert count == 2 and [line.where for line in broken] == [f"{source}:1", f"{source}:4"]
    assert "2 of the file's rows cannot be read" in (tmp_path / "page.html").read_text(encoding="utf-8")
    odd, leak = embedded(tmp_path / "page.html")
    assert (odd["plan"], odd["subproblems"]) == (["walk"], ["7"])
    assert leak["faults"] == ["states_answer: node '2': x = 0.5"] and leak["drawing"]


def test_rows_that_training_refuses_are_marked(tmp_path):
    source = tmp_path / "d.jsonl"
    rows = [row("p", ["a"]), row("p", ["b"]), row(None, ["c"]), row("q", ["d"], answer=0.5)]
    write_jsonl(source, rows)
    write_browser(source, tmp_path / "page.html")
    shown = embedded(tmp_path / "page.html")
    assert [entry["usable"] for entry in shown] == [True, False, False, False]
    assert [fault.split(":")[0] for entry in shown for fault in entry["faults"]] == [
        "repeated_id",
        "missing_id",
        "bad_answer",
    ]
    assert all(entry["drawing"] for entry in shown) and shown[2]["id"] == f"{source}:3"


@needs_browser
def test_page_in_a_browser(page):
    """Search, keyboard, marks, states of checkpoints and escaping, in one opening of the page."""
    script = """
        const press = key => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
        const boxes = () => [...document.querySelectorAll(".node")];
        const word = box => box.querySelector(".state").textContent;
        const states = () => boxes().map(box => `${box.getAttribute("class")}: ${word(box)}`);
        const choose = index => boxes()[index].dispatchEvent(new MouseEvent("click", {bubbles: true}));
        const found = {count: count.textContent, first: document.querySelector("h2").textContent, states: [states()]};
        choose(2); found.states.push(states());
        choose(3); found.states.push(states());
        choose(1); found.states.push(states());
        boxes()[1].dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}));
        found.states.push(states());
        found.edges = document.querySelectorAll("path.edge").length;
        press("ArrowDown"); found.second = document.querySelector("h2").textContent;
        choose(0); found.cycle = states();
        found.faults = [...document.querySelectorAll(".faults li")].map(item => item.textContent);
        press("/"); found.searching = document.activeElement === search;
        search.value = "APPLE frac"; search.dispatchEvent(new Event("input"));
        found.hits = count.textContent; found.third = document.querySelector("h2").textContent;
        found.hit = boxes().map(box => box.classList.contains("hit"));
        found.images = document.images.length; found.title = document.title;
        press("Escape"); found.all = count.textContent;
        for (const _ of "12") press("ArrowDown");
        found.listed = document.querySelectorAll("main li").length;
        found.requires = [...document.querySelectorAll("main li small")].map(item => item.textContent.trim());
        search.value = "nothing like it"; search.dispatchEvent(new Event("input"));
        found.none = detail.textContent;
        return found;
    """
    assert in_browser(page, script) == {
        "count": "4 graphs",
        "first": "diamond",
        "states": [
            ["node next: next", "node later: later", "node later: later", "node later: later"],
            ["node reached: reached", "node next: next", "node reached: reached", "node later: later"],
            ["node reached: reached"] * 4,
            ["node reached: reached", "node next: next", "node reached: reached", "node later: later"],
            ["node reached: reached", "node reached: reached", "node reached: reached", "node next: next"],
        ],
        "edges": 4,
        "second": "cycle",
        "cycle": ["node reached: reached"] * 2,
        "faults": ["cycle: 1 -> 2 -> 1"],
        "searching": True,
        "hits": "1 of 4 graphs",
        "third": EVIL,
        "hit": [False, True],
        "images": 0,
        "title": "dags.jsonl: reasoning DAGs",
        "all": "4 graphs",
        "listed": 301,
        "requires": ["requires 1"],
        "none": "No graph matches.",
    }
