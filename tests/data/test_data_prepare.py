import hashlib
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_aopsd.data.prepare import answer_parses, normalise, parse_mapping, prepare
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.data.source import read_source
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_jsonl, write_jsonl


def write(path, *rows):
    write_jsonl(path, rows)
    return path


def row(problem, answer="7", **more):
    return {"question": problem, "answer": answer, "solution": "so \\boxed{7}"} | more


def test_each_filter_counts_what_it_removes(tmp_path):
    held_out = write(tmp_path / "eval.jsonl", {"problem": "What is $ 3 + 4 $ ?"})
    source = write(
        tmp_path / "source.jsonl",
        row("Find x."),
        row("FIND  $x$"),  # the same problem
        row("what is 3+4"),  # held out
        row("Find y.", answer="???"),  # a row that was dropped makes no later one a duplicate
        row("", answer="7"),
        row("No answer.", answer=None),
        row("Find y.", answer=7, solution="\\boxed{8}"),
        row("Find z.", answer="$\\frac{1}{2}$", solution=None),
    )
    out = tmp_path / "out.jsonl"
    report = prepare(read_source(str(source)), {}, [held_out], out)
    assert report.read == 8 and report.kept == 3
    assert list(report.left_out.values()) == [2, 1, 1, 1, 0] and str(held_out) in list(report.left_out)[3]
    assert [problem.id for problem in load_problems(out)] == ["out-0000", "out-0006", "out-0007"]
    ids = [row for _, row in read_jsonl(tmp_path / "out.ids.jsonl")]
    assert ids[0] == {"id": "out-0000", "sha256": hashlib.sha256(b"Find x.").hexdigest()} and len(ids) == 3
    counts = json.loads((tmp_path / "out.report.json").read_text())
    assert (counts["read"], counts["left_out"], counts["kept"]) == (8, report.left_out, 3)
    assert counts["without_solution"] == ["out-0007"] and counts["boxes_another_answer"] == ["out-0006"]


def test_answers_of_gsm8k_s_form_are_taken_apart(tmp_path):
    worked = "3 + 4 = <<3+4=7>>7\n#### 7"
    source = write(
        tmp_path / "s.jsonl",
        {"question": "Find x.", "answer": worked},
        {"question": "Find y.", "answer": worked, "solution": "so \\boxed{7}"},
        {"question": "Find z.", "answer": "#### 1,007"},
        {"question": "Find w.", "answer": "### Steps\n3 + 4 = 7\n#### Answer\n7"},  # headings
    )
    prepare(read_source(str(source)), {}, [], tmp_path / "out.jsonl")
    found = [(problem.answer, problem.solution) for problem in load_problems(tmp_path / "out.jsonl")]
    made = "3 + 4 = 7\nThe answer is \\boxed{7}."
    assert found == [("7", made), ("7", "so \\boxed{7}"), ("1,007", None)]


def test_rows_of_chats_are_called_so(tmp_path):
    source = write(tmp_path / "s.jsonl", {"messages": [{"role": "user", "content": "Find x."}]})
    with pytest.raises(UserError, match=r"there are messages\. Chats \(`messages`\) are not read: write question"):
        prepare(read_source(str(source)), {}, [], tmp_path / "out.jsonl")


def test_columns_that_are_not_kept_are_named(tmp_path):
    source = write(tmp_path / "s.jsonl", row("Find x.", plan=["a"], dag={}), row("Find y.", level=3))
    report = prepare(read_source(str(source)), {}, [], tmp_path / "out.jsonl")
    assert "      3  columns left out: dag, level, plan" in list(report.lines())
    assert json.loads((tmp_path / "out.report.json").read_text())["columns_left_out"] == ["dag", "level", "plan"]


@pytest.mark.parametrize("pair", ["problem", "title=question", "problem=", "=question"])
def test_bad_mapping_is_refused(pair):
    with pytest.raises(UserError, match="expected FIELD=COLUMN"):
        parse_mapping([pair])


@pytest.mark.parametrize(
    ("mapping", "message"),
    [({"problem": "text"}, "no column text among key"), ({"problem": "key"}, "--map answer=COLUMN")],
)
def test_missing_columns_are_named(tmp_path, mapping, message):
    source = write(tmp_path / "s.jsonl", {"key": "a"})
    with pytest.raises(UserError, match=message):
        prepare(read_source(str(source)), mapping, [], tmp_path / "out.jsonl")


def test_each_row_has_columns_of_its_own(tmp_path):
    """The first row lacks id and solution, the third asks its `question`, the fifth has an empty `problem`."""
    source = write(
        tmp_path / "s.jsonl",
        {"problem": "Find x.", "answer": "7"},
        {"problem": "Find y.", "answer": "7", "solution": "so \\boxed{7}", "id": "b"},
        {"question": "Find z.", "answer": 7, "solution": "so \\boxed{7}", "id": 3},
        {"problem": "Find u.", "id": "d"},
        {"problem": " ", "question": "Find v.", "answer": "7", "id": "e"},
    )
    out = tmp_path / "out.jsonl"
    report = prepare(read_source(str(source)), {}, [], out)
    assert [row for _, row in read_jsonl(out)] == [
        {"id": "out-0000", "problem": "Find x.", "answer": "7"},
        {"id": "b", "problem": "Find y.", "answer": "7", "solution": "so \\boxed{7}"},
        {"id": "3", "problem": "Find z.", "answer": "7", "solution": "so \\boxed{7}"},
        {"id": "e", "problem": "Find v.", "answer": "7"},
    ]
    assert report.left_out["without problem or answer"] == 1


def test_columns_are_mapped_and_may_be_missing_in_some_rows(tmp_path):
    mapped = {"key": "a", "instruction": "Find x.", "gold": "8", "output": "eight"}
    source = write(tmp_path / "s.jsonl", row("Find x."), mapped, {"gold": "9"})
    mapping = parse_mapping(["id=key", "problem=instruction", "answer=gold", "solution=output"])
    report = prepare(read_source(str(source)), mapping, [], tmp_path / "out.jsonl")
    assert (report.kept, report.left_out["without problem or answer"]) == (1, 2)
    kept = json.loads((tmp_path / "out.jsonl").read_text())
    assert kept == {"id": "a", "problem": "Find x.", "answer": "8", "solution": "eight"}


@pytest.mark.parametrize("answer", [True, False, None, [7], {"value": 7}, float("nan"), float("inf"), ""])
def test_what_is_neither_text_nor_number_is_no_answer(tmp_path, answer):
    source = write(tmp_path / "s.jsonl", row("Find x."), row("Find y.", answer=answer))
    report = prepare(read_source(str(source)), {}, [], tmp_path / "out.jsonl")
    assert report.left_out["without problem or answer"] == 1


def test_nothing_left_is_an_error_with_the_counts(tmp_path):
    source = write(tmp_path / "s.jsonl", row("Find x.", answer="???"))
    with pytest.raises(UserError, match=r"(?s)-1  answer does not parse.*Nothing is left"):
        prepare(read_source(str(source)), {}, [], tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_repeated_id_is_an_error(tmp_path):
    source = write(tmp_path / "s.jsonl", row("Find x.", id="a"), row("Find y.", id="a"))
    with pytest.raises(UserError, match="'a' was used before"):
        prepare(read_source(str(source)), {}, [], tmp_path / "out.jsonl")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"Let \(A B C\) be", "let $ABC$ be"),
        (r"$\left( \dfrac{1}{2} \right)$", r"(\frac{1}{2})"),
        ("x − 1", "x - 1"),
        ("ﬁnd x", "find x"),
    ],
)
def test_layout_makes_no_difference(one, other):
    assert normalise(one) == normalise(other)


def test_mathematics_makes_a_difference():
    texts = ["x + 1", "x - 1", "x * 1", "x / 1", "x ^ 1", "x = 1", "x < 1", "x > 1", "解方程", "求面积"]
    assert len({normalise(text) for text in texts}) == len(texts)


@given(st.text())
def test_normalising_twice_changes_nothing(text):
    assert normalise(normalise(text)) == normalise(text)


PARSED = ["7", "-007", r"\frac{1}{2}", "$(1, 2)$", r"3\sqrt{2}", r"\{1, 2\}", "1" * 5000, r"50\%", "3:30", "1_2", "7."]
PARSED += ["yes", "A", r"\text{blue}", "True", "no real solution", r"\text{no solution}", r"\text{(B)}", "red, blue"]
PARSED += ["ab + bc + cd + de", "A, B, C, D", "x = 2 or x = 3", r"\{\text{red}, \text{blue}\}", r"[0, 1) \cup (2, 3]"]


@pytest.mark.parametrize("answer", PARSED)
def test_answers_that_parse(answer):
    assert answer_parses(answer)


UNPARSED = ["???", r"\frac{1}{", "no solution exists here", r"$\text{the midpoints form a hexagon}$", "$", r"\text{}"]


@pytest.mark.parametrize("answer", [*UNPARSED, "1, ???"])
def test_answers_that_do_not_parse(answer):
    assert not answer_parses(answer)


def test_parquet_is_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "s.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([row("Find x."), row("Find y.")]), path)
    rows = list(read_source(str(path)))
    assert rows[1] == (f"{path}, row 2", row("Find y."))
    path.write_bytes(b"no parquet")
    with pytest.raises(UserError, match="no readable parquet"):
        list(read_source(str(path)))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[data\]'"):
        list(read_source(str(tmp_path / "s.parquet")))


@pytest.mark.parametrize("source", ["nowhere.jsonl", "nowhere.parquet", "just a name"])
def test_source_that_is_not_there(source):
    with pytest.raises(UserError, match=r"no such file|neither a file nor a hub id"):
        list(read_source(source))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Writes files, each with its name as a question, which are then what the hub's library downloads."""
    import huggingface_hub

    seen = {}

    def download(hub_id, **options):
        seen.update(options, hub_id=hub_id)
        return str(tmp_path / "some-train-folder")

    def fill(*files):
        for file in files:
            write(tmp_path / "some-train-folder" / file, row(file))
        return seen

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return fill


def test_hub_files_are_chosen_by_split(hub):
    seen = hub("data/train-0.jsonl", "data/test-0.jsonl")
    rows = list(read_source("owner/set", split="test", revision="abc"))
    assert [record["question"] for _, record in rows] == ["data/test-0.jsonl"]
    assert seen["hub_id"] == "owner/set" and seen["revision"] == "abc" and seen["repo_type"] == "dataset"
    assert len(list(read_source("owner/set", split="train"))) == 1
    with pytest.raises(UserError, match=r"split 'dev' among \['data/test-0.jsonl', 'data/train-0.jsonl'\]"):
        list(read_source("owner/set", split="dev"))


HUB_FILES = {
    "one a split": (["train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "test-00000-of-00001.parquet"], 2),
    "a name around it": (["pretrain.jsonl", "train.jsonl"], 1),
    "a name that goes on": (["trainer.jsonl", "data/train.jsonl"], 1),
    "another split": (["train_sft.jsonl", "train.jsonl"], 1),
    "numbers": (["train_0.jsonl", "train1.jsonl", "test_0.jsonl"], 2),
    "folders": (["train/0.jsonl", "train/1.jsonl", "test/0.jsonl"], 2),
    "joined, if there is no other": (["limo_train.jsonl", "limo_test.jsonl", "limo_pretrain.jsonl"], 1),
    "capitals": (["Train.jsonl", "Test.jsonl"], 1),
    "one file is what there is": (["limo.jsonl"], 1),
}


@pytest.mark.parametrize(("files", "count"), HUB_FILES.values(), ids=HUB_FILES)
def test_a_split_is_a_word_of_its_own(hub, files, count):
    hub(*(file.replace(".parquet", ".jsonl") for file in files))
    assert len(list(read_source("owner/set"))) == count


@pytest.mark.parametrize("files", [["train.csv"], []])
def test_a_data_set_of_csv_says_what_to_do(hub, files):
    hub(*files)
    with pytest.raises(UserError, match=r"owner/set: .* CSV .* write one"):
        list(read_source("owner/set"))
