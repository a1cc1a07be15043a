"""Problems by path or by name; the hub is a stand-in."""

from pathlib import Path

import pytest

from nemo_aopsd.data import source as data_source
from nemo_aopsd.errors import UserError
from nemo_aopsd.evaluation.benchmarks import HUB_SETS, load_benchmarks
from nemo_aopsd.files import write_jsonl


def write(path, rows):
    write_jsonl(path, rows)
    return str(path)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Data sets by id, as the hub would leave them on disk."""
    sets = {}

    def download(hub_id, split, revision):
        if hub_id not in sets:
            raise UserError(f"{hub_id}: the hub cannot be reached, and its cache has no such data set. Use a file.")
        return [Path(write(tmp_path / f"{split}-{hub_id.replace('/', '-')}.jsonl", sets[hub_id]))]

    monkeypatch.setattr(data_source, "_download", download)
    monkeypatch.chdir(tmp_path)
    return sets


def rows(count):
    return [{"problem_idx": i, "problem": f"What is {i}?", "answer": i, "solution": "s"} for i in range(count)]


def test_all_four_ids_load_from_the_hub(hub):
    for hub_id, _ in HUB_SETS.values():
        hub[hub_id] = rows(30)
    found = load_benchmarks(["aime24", "aime25", "hmmt_feb25", "brumo25"])
    assert {name: len(problems) for name, problems in found.items()} == dict.fromkeys(HUB_SETS, 30)
    problem = found["brumo25"][7]
    assert (problem.id, problem.problem, problem.answer) == ("brumo25-7", "What is 7?", "7")


def test_without_a_network_the_file_to_give_is_named(hub):
    with pytest.raises(UserError) as caught:
        load_benchmarks(["hmmt_feb25"])
    assert str(caught.value) == (
        "--data hmmt_feb25: MathArena/hmmt_feb_2025: the hub cannot be reached, and its cache has no such data set. "
        "Or give the problems yourself: --data hmmt_feb25.jsonl, one object a line with id, problem, answer."
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (rows(29), r"HuggingFaceH4/aime_2024 has 29 rows, expected 30\. Or give the problems"),
        ([*rows(29), {"problem": "?"}], r"aime_2024\.jsonl:30: `answer` must be a non-empty string"),
        ([*rows(29), {"answer": "1"}], r"aime_2024\.jsonl:30: `problem` must be a non-empty string"),
    ],
)
def test_a_data_set_that_has_changed_is_refused(hub, content, message):
    hub["HuggingFaceH4/aime_2024"] = content
    with pytest.raises(UserError, match=message):
        load_benchmarks(["aime24"])


def test_files_are_named_by_their_stem(tmp_path):
    of_teachers = {"solution": 2, "dag": {"nodes": [], "edges": []}}  # neither is looked at
    one = write(tmp_path / "mine.v2.jsonl", [{"id": "a", "problem": "?", "answer": 1, **of_teachers}])
    two = write(tmp_path / "aime24.jsonl", [{"id": "b", "problem": "?", "answer": "2"}])
    assert {name: [p.id for p in found] for name, found in load_benchmarks([one, two]).items()} == {
        "mine_v2": ["a"],
        "aime24": ["b"],
    }


def test_a_file_of_the_name_of_an_id_wins(hub, tmp_path):
    write(tmp_path / "aime25", [{"id": "b", "problem": "?", "answer": "2"}])
    assert [problem.id for problem in load_benchmarks(["aime25"])["aime25"]] == ["b"]


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["aime26"], r"--data aime26: neither a file nor one of aime24, aime25, hmmt_feb25, brumo25\."),
        (["nowhere.jsonl"], r"nowhere\.jsonl: no such file"),
        (["x.jsonl", "sub/x.jsonl"], r"--data sub/x\.jsonl: a second benchmark named 'x'\. Rename one"),
    ],
)
def test_bad_sources(tmp_path, monkeypatch, sources, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.jsonl", [{"id": "a", "problem": "?", "answer": "1"}])
    with pytest.raises(UserError, match=message):
        load_benchmarks(sources)
