"""The audit without its page: drawing, blindness, labels, the model that judges, and what the report says."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nemo_aopsd.analysis.audit import events, judge, labels, report, sampling
from nemo_aopsd.analysis.audit.labels import LabelBook, labels_path, read_labels
from nemo_aopsd.analysis.audit.sampling import load_events
from nemo_aopsd.cli.app import app
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import write_jsonl
from tests.chat_server import ChatServer, Reply
from tests.fake_run import rewrite, write_run
from tests.run import read

HAND = {"kind": "hand"}
NOW = {"Retry-After": "0.001"}


def invoke(*arguments, code=0):
    result = CliRunner().invoke(app, ["audit", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", num_epochs=2, steps_per_epoch=4, evaluations=False)


def change_rollouts(run, change):
    """Apply `change(rollout)` to every recorded rollout."""
    for file in (run / "rollouts").iterdir():
        found = read(file)
        for rollout in found:
            change(rollout)
        write_jsonl(file, found)


def scored_probes(run):
    return [
        (rollout, probe)
        for file in sorted((run / "rollouts").iterdir())
        for rollout in read(file)
        for probe in rollout["probes"]
        if probe["nll"] is not None
    ]


# --- drawing


def test_all_events_are_found_and_shown_as_they_happened(run):
    drawn = sampling.sample(run, count=10_000, seed=0)
    truth = scored_probes(run)
    assert sum(drawn.population_per_bin) == drawn.num_drawn == len(truth) > 40
    empty = [p for f in (run / "rollouts").iterdir() for r in read(f) for p in r["probes"] if p["nll"] is None]
    assert drawn.num_empty == len(empty) > 0
    shown = {(event.before, event.token, event.anchor, event.suffix) for event in load_events(run)}
    assert shown == {
        (
            "".join(rollout["pieces"][: probe["position"]]),
            rollout["pieces"][probe["position"]],
            probe["anchor_text"],
            probe["suffix_text"],
        )
        for rollout, probe in truth
    }
    assert [line["id"] for line in read(run / "audit/key.jsonl")] == [event.id for event in load_events(run)]
    assert Counter(line["nll"] for line in read(run / "audit/key.jsonl")) == Counter(p["nll"] for _, p in truth)


def test_the_teacher_is_shown_with_what_it_read(run):
    sampling.sample(run, count=10_000, seed=0)
    truth = {
        ("".join(rollout["pieces"][: probe["position"]]), probe["suffix_text"]): len(rollout["reached"])
        for rollout, probe in scored_probes(run)
    }
    for event in load_events(run):
        marked = [line for line in event.teacher_read.splitlines() if line.startswith("[")]
        assert sum(line.endswith("reached") for line in marked) == truth[event.before, event.suffix]
        assert event.problem in event.teacher_read


def test_labellers_are_blind(tmp_path):
    """Other NLLs, weights and sizes of gaps leave what a labeller sees as it was, to the byte and in its order."""
    seen = []
    for scale in (1.0, 7.5):
        run = write_run(tmp_path / "run", num_epochs=1, steps_per_epoch=4, evaluations=False)

        def change(rollout, scale=scale):
            for probe in rollout["probes"]:
                probe["gap"] *= scale
                probe["weight"] /= scale
                if probe["nll"] is not None:
                    probe["nll"] = 10 / (scale + probe["nll"])

        change_rollouts(run, change)
        sampling.sample(run, count=20, seed=3)
        seen.append((run / "audit/events.jsonl").read_bytes())
        (run / "audit/sample.json").unlink()
    assert seen[0] == seen[1]
    numbers = {"nll", "gap", "weight", "step", "position"}
    assert all(numbers.isdisjoint(event) for event in read(run / "audit/events.jsonl"))


def test_order_says_nothing_of_the_bin():
    """A sample by bin is shuffled: the bins of its first half are those of the whole, but for chance."""
    places = [events.Place(Path("f"), row, 0, float(row % 5)) for row in range(2000)]
    drawn = sampling.draw(places, count=1000, seed=0, by_bin=True, edges=(1.0, 2.0, 3.0, 4.0))
    half = sampling.count_per_bin([place.nll for place in drawn[:500]], (1.0, 2.0, 3.0, 4.0))
    assert sum(half) == 500 and all(70 <= size <= 130 for size in half)  # 100 each, deviation 7.5
    assert sampling.count_per_bin([place.nll for place in drawn], (1.0, 2.0, 3.0, 4.0)) == [200] * 5


@given(st.lists(st.integers(0, 50), min_size=1, max_size=7), st.integers(0, 300))
def test_allocation_is_as_even_as_the_bins_allow(sizes, count):
    given_out = sampling.allocate(sizes, count)
    assert sum(given_out) == min(count, sum(sizes))
    assert all(0 <= share <= size for share, size in zip(given_out, sizes, strict=True))
    short = [share for share, size in zip(given_out, sizes, strict=True) if share < size]
    if short:
        assert max(given_out) <= min(short) + 1


def test_sample_is_drawn_once(run):
    first = invoke("sample", run, "--count", 30, "--seed", 5, "--by-bin", "--edges", "1,4")
    content = (run / "audit/events.jsonl").read_bytes()
    assert "30 of " in first and "the same number of each bin as far as it goes, seed 5" in first
    assert "| 1 ≤ L < 4 |" in first and "| L ≥ 4 |" in first
    assert invoke("sample", run, "--count", 30, "--seed", 5, "--by-bin", "--edges", "1,4") == first
    with pytest.raises(UserError, match=r"count 30 -> 31.*move the folder away"):
        sampling.sample(run, count=31, seed=5, by_bin=True, edges=(1.0, 4.0))
    assert (run / "audit/events.jsonl").read_bytes() == content


def test_long_texts_are_cut_with_a_count(run):
    change_rollouts(run, lambda rollout: rollout["pieces"].__setitem__(0, "a" * 5000))
    file = run / "rollouts/step_000001.jsonl"
    file.write_text(file.read_text() * 2)  # the same text at two places is two events
    sampling.sample(run, count=10_000, seed=0)
    assert len({event.id for event in load_events(run)}) == len(load_events(run)) == len(scored_probes(run))
    by_place = {line["id"]: line["position"] for line in read(run / "audit/key.jsonl")}
    late = [event for event in load_events(run) if by_place[event.id] > 0]
    assert late and all(len(event.before) == events.SHOWN_CHARACTERS for event in late)
    assert all(event.before_omitted >= 1000 for event in late)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rollout: rollout.pop("pieces"), "`pieces`"),
        (lambda rollout: rollout.update(problem_id="gone"), "no problem 'gone'"),
        (lambda rollout: [probe.update(nll=float("nan")) for probe in rollout["probes"]], "`nll` must be null or"),
        (lambda rollout: [probe.update(nll=-1) for probe in rollout["probes"]], "`nll` must be null or"),
        (lambda rollout: [probe.pop("suffix_text") for probe in rollout["probes"]], "`suffix_text`"),
        (lambda rollout: rollout.update(probes=[None]), "`probes.0`"),
        (lambda rollout: rollout.update(probes=[]), "no continuation event among its 8 rollout files"),
    ],
)
def test_runs_that_cannot_be_audited_are_refused(run, change, message):
    change_rollouts(run, change)
    with pytest.raises(UserError, match=message):
        sampling.sample(run, count=10, seed=0)
    assert not (run / "audit").exists()


@pytest.mark.parametrize("edges", ["", "2,1", "0,1", "1,inf"])
def test_bad_edges_are_refused(run, edges):
    with pytest.raises(UserError, match="--edges"):
        invoke("sample", run, "--count", 3, "--edges", edges)


def test_other_contexts_show_theirs(tmp_path):
    run = write_run(tmp_path / "run", num_epochs=1, steps_per_epoch=2, evaluations=False, context="other_problem")
    problems = tmp_path / "problems.jsonl"
    rewrite(
        problems, lambda row: row | {"problem": f"{row['problem']} ({row['id']})", "solution": f"SOLUTION {row['id']}"}
    )
    sampling.sample(run, count=5, seed=0)
    for event in load_events(run):
        assert "SOLUTION p" in event.teacher_read and f"SOLUTION {event.problem_id}" not in event.teacher_read


# --- labels


def test_label_book(tmp_path):
    path = labels_path(tmp_path, "zoë_1@x")
    with LabelBook(path, HAND) as book:
        for event, label in (("a", "useful"), ("b", "leakage"), ("a", "redundant")):
            book.add(event, label)
        assert book.labels == {"b": "leakage", "a": "redundant"}
        assert (book.undo(), book.undo(), book.undo()) == ("a", "b", None)
        book.add("b", "useful")
        with pytest.raises(UserError, match="another process is labelling"):
            LabelBook(path, HAND)
    with pytest.raises(UserError, match="Choose another --name"):
        LabelBook(path, {"kind": "model"})


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "x" * 65, "a\n"])
def test_names_that_are_no_file_names_are_refused(tmp_path, name):
    with pytest.raises(UserError, match="--name"):
        labels_path(tmp_path, name)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"event": "a", "label": "splendid", "origin": {}}', "'splendid' is none of"),
        ('{"event": "a"}', "expected an object with event, label, origin"),
    ],
)
def test_broken_label_files_are_named(tmp_path, line, message):
    path = tmp_path / "l.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UserError, match=message):
        read_labels(path)


def test_labelling_needs_a_sample(run):
    for command in (["label", run, "--name", "ada"], ["report", run]):
        with pytest.raises(UserError, match="aopsd audit sample"):
            invoke(*command)


# --- the model that judges


def answer(label="leakage", **fields):
    return lambda body, headers: Reply(json.dumps({"reason": "r", "label": label}), **fields)


def ask_model(run, server, *extra, name="m"):
    return invoke("judge", run, "--base-url", server.url, "--model", name, "--concurrency", 2, *extra)


def test_model_labels_every_event_blindly(run):
    invoke("sample", run, "--count", 12)
    with ChatServer(answer()) as server:
        assert "12 labelled as org_m, 0 before; 0 answers named no label" in ask_model(run, server, name="org/m")
        assert "0 labelled as org_m, 12 before" in ask_model(run, server, name="org/m")
        assert len(server.bodies) == 12
    origin, found, _ = read_labels(run / "audit/labels/org_m.jsonl")
    assert origin["model"] == "org/m" and set(found.values()) == {"leakage"} and len(found) == 12
    asked = sorted(body["messages"][0]["content"] for body in server.bodies)
    assert asked == sorted(judge.messages(event)[0]["content"] for event in load_events(run))
    for event in load_events(run):  # every part of the event is in exactly one question, and it holds no number more
        [question] = [text for text in asked if event.before + "\n</text>" in text]
        assert f"<continuation>{event.anchor}{event.suffix}</continuation>" in question
        assert f"<token>{event.token}</token>" in question and event.teacher_read in question
    assert not any(str(line["nll"])[:6] in text for line in read(run / "audit/key.jsonl") for text in asked)


def test_an_interrupted_model_goes_on(run):
    invoke("sample", run, "--count", 12)
    seen = []

    def fails_after_five(body, headers):
        seen.append(body["messages"][0]["content"])
        return answer("useful")(body, headers) if len(seen) <= 5 else Reply(status=500, headers=NOW)

    with ChatServer(lambda *_: Reply(status=401)) as server, pytest.raises(UserError, match="401"):
        ask_model(run, server)
    assert not (run / "audit/labels/m.jsonl").exists()
    with ChatServer(fails_after_five) as server, pytest.raises(UserError, match="5 of 12 events were answered and"):
        ask_model(run, server)
    assert len(read_labels(run / "audit/labels/m.jsonl")[1]) == 5
    with ChatServer(answer("redundant")) as server:
        assert "7 labelled as m, 5 before" in ask_model(run, server)
        assert len(server.bodies) == 7
    found = read_labels(run / "audit/labels/m.jsonl")[1]
    assert Counter(found.values()) == {"useful": 5, "redundant": 7} and len(found) == 12


def test_answers_without_a_label_are_counted_and_asked_again(run):
    invoke("sample", run, "--count", 4)
    with ChatServer(lambda *_: Reply("I cannot say.")) as server:
        assert "0 labelled as m, 0 before; 4 answers named no label" in ask_model(run, server)
        assert Counter(body["temperature"] for body in server.bodies) == {0.0: 4, 1.0: 4}
    assert "0 of 4 events labelled; answers without a label: 4." in invoke("report", run)
    with ChatServer(answer("Useful ")) as server:
        assert "4 labelled as m, 0 before; 0 answers" in ask_model(run, server)
    assert "4 of 4 events labelled; answers without a label: 0." in invoke("report", run)


def test_wrong_key_ends_at_once_and_is_never_written(run, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-0123456789")
    invoke("sample", run, "--count", 4)
    with ChatServer(lambda *_: Reply(status=401)) as server, pytest.raises(UserError, match="--api-key-env"):
        ask_model(run, server)
    with ChatServer(answer(body=None)) as server:
        server.answer = lambda *_: Reply('sk-very-secret-0123456789 {"label": "useful"}')
        ask_model(run, server)
    assert "very-secret" not in (run / "audit/labels/m.jsonl").read_text()


# --- the report


@pytest.fixture
def labelled(run):
    """Two people on all events of a sample by bin: ada by a rule on the NLL, bob like her but for each fifth event."""
    sampling.sample(run, count=60, seed=0, by_bin=True)
    chance = random.Random(0)
    key = read(run / "audit/key.jsonl")
    rule = ["leakage" if line["nll"] >= 2 else "useful" if line["nll"] >= 0.5 else "redundant" for line in key]
    for name in ("ada", "bob"):
        with LabelBook(labels_path(run, name), HAND) as book:
            for number, (line, label) in enumerate(zip(key, rule, strict=True)):
                book.add(line["id"], label if name == "ada" or number % 5 else chance.choice(list(labels.LABELS)))
    return run


def test_report(labelled):
    said = invoke("report", labelled)
    record = json.loads((labelled / "audit/report.json").read_text())
    ada = record["labellers"]["ada"]
    shares = [row["labels"]["leakage"]["share"] for row in ada["bins"]]
    assert record["bins"] == ["L < 0.5", "0.5 ≤ L < 1", "1 ≤ L < 2", "2 ≤ L < 3", "3 ≤ L < 4", "L ≥ 4"]
    assert [share for share in shares if share is not None] == [0.0] * 3 + [1.0] * (
        len(shares) - shares.count(None) - 3
    )
    population = record["sample"]["population_per_bin"]
    assert ada["base_rate"]["leakage"] == pytest.approx(sum(population[3:]) / sum(population))
    [pair] = record["agreement"]
    assert pair["labellers"] == ["ada", "bob"] and pair["events"] == 60 and 48 <= pair["agree"] < 60
    assert f"same label on {pair['agree']} of 60 events, Cohen's kappa {pair['kappa']:.3f}" in said
    text = (labelled / "audit/report.md").read_text()
    assert "| L, nats a token | events in the run | drawn | labelled | useful | redundant | leakage |" in text
    assert f"100.0 % ({ada['bins'][3]['labelled']} of {ada['bins'][3]['labelled']})" in text and "91.35 %" in text
    figure = (labelled / "audit/enrichment.svg").read_text()
    before = [(labelled / "audit" / name).read_bytes() for name in ("report.json", "report.md", "enrichment.svg")]
    invoke("report", labelled)
    assert [(labelled / "audit" / n).read_bytes() for n in ("report.json", "report.md", "enrichment.svg")] == before
    sizes = ", ".join(str(row["labelled"]) for row in ada["bins"])
    assert f"ada: 60 labels, by bin {sizes}" in figure and "bob: 60 labels" in figure and "leakage" in figure


def test_report_of_one_labeller_so_far(run):
    sampling.sample(run, count=8, seed=0, by_bin=True)
    with pytest.raises(UserError, match="no label yet"):
        report.write_report(run)
    with LabelBook(labels_path(run, "ada"), HAND) as book:
        book.add(load_events(run)[0].id, "useful")
        invoke("report", run)  # while she goes on
    text = (run / "audit/report.md").read_text()
    assert "One labeller only" in text and "no label" in text and "not known until each bin has labels" in text


def test_what_is_broken_or_of_another_sample_is_named(labelled):
    folder = labelled / "audit"
    first, *others = (folder / "key.jsonl").read_text().splitlines(keepends=True)
    foreign = json.dumps({"event": "0" * 16, "label": "useful", "origin": HAND}) + "\n"
    for name, content, message in (
        ("sample.json", "{", "sample.json: .*JSON"),
        ("sample.json", '{"seed": 0}', "sample.json: `count`"),
        ("key.jsonl", '{"id": "a"}\n', "key.jsonl:1: `step`"),
        ("key.jsonl", "".join([*others, others[0]]), "not of one sample"),
        ("events.jsonl", '{"id": "a"}\n', "events.jsonl:1: `problem_id`"),
        ("events.jsonl", b"\xe9", "events.jsonl:1: "),
        ("events.jsonl", '{"id": "a', "events.jsonl:1: "),
        ("events.jsonl", "", "events.jsonl: 0 events, sample.json says 60"),
        ("labels/ada.jsonl", foreign, "1 of 1 labels are of events outside this sample"),
    ):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(UserError, match=message):
            report.write_report(labelled)
        (folder / name).write_bytes(whole)
    assert first in (folder / "key.jsonl").read_text() and report.write_report(labelled)
