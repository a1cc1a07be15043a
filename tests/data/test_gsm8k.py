"""GSM8K's rows as problems with graphs. The rows here are ours, in the form of the data set."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nemo_aopsd.cli.app import app
from nemo_aopsd.data.gsm8k import convert, dev_path
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.data.source import read_source
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import write_jsonl

SHOP = (
    "A pen costs 3/2 = $<<3/2=1.5>>1.5 today.\n"
    "Nobody buys a ruler.\n"
    "Ten pens cost 10*1.50 = <<10*1.50=15>>15 and a bag costs 4*5 = <<4*5=20>>20.\n"
    "With the fee of 1,000 that is 15+20+1000 = <<15+20+1000=1,035>>1,035.\n"
    "Half is 1035/2 = <<1035/2=517.5>>517.5.\n"
    "#### 517.5"
)
REASONS = {
    "without calculator annotations": "Two and two are four.\n#### 4",
    "the last sum is not the answer": "First <<1+1=2>>2, then <<2+5=7>>7, then <<7+1=8>>8, so 9.\n#### 9",
    "fewer than 2 checkpoints before the answer": "One <<1+2=3>>3.\nTwo <<3*3=9>>9.\n#### 9",
    "a checkpoint gives the answer away": "99+1=<<99+1=100>>100\n100-3 = <<100-3=97>>97\n97+3 <<97+3=100>>\n#### 100",
}


def test_a_computing_line_is_a_checkpoint_and_an_edge_says_whose_value_it_uses(tmp_path: Path) -> None:
    (problem,) = _convert(tmp_path, [SHOP])
    statements = dict(problem.graph.nodes.data("statement"))
    assert statements == {
        "1": "A pen costs 3/2 = $1.5 today.",
        "2": "Ten pens cost 10*1.50 = 15 and a bag costs 4*5 = 20.",
        "3": "With the fee of 1,000 that is 15+20+1000 = 1,035.",
    }
    assert set(problem.graph.edges) == {("1", "2"), ("2", "3")}
    assert (problem.answer, problem.solution) == ("517.5", _plain(SHOP) + "\nThe answer is \\boxed{517.5}.")


def test_of_two_lines_with_one_value_the_latest_counts(tmp_path: Path) -> None:
    worked = "A <<2+4=6>>6.\nB <<9-3=6>>6.\nC <<6*7=42>>42.\nD <<42+6=48>>48.\n#### 48"
    (problem,) = _convert(tmp_path, [worked])
    assert set(problem.graph.edges) == {("2", "3")}


def test_a_problems_file_with_graphs_needs_no_conversion(tmp_path: Path) -> None:
    """And `prepare`, which other data goes through, says that it leaves the graphs out."""
    _convert(tmp_path, [SHOP])
    made = next(path for path in tmp_path.iterdir() if '"dag"' in path.read_text())
    with pytest.raises(UserError, match=rf"{made.name}:1: .*data\.train\.data_path"):
        convert(read_source(str(made)), tmp_path / "again.jsonl")
    write_jsonl(plain := tmp_path / "plain.jsonl", [{"id": "a", "problem": "Of what?", "answer": "4"}])
    for path in (made, plain):
        with pytest.raises(UserError, match=rf"{path.name}:1: .*aopsd evaluate --data FILE"):
            convert(read_source(str(path)), tmp_path / "again.jsonl", bare=True)
    bare = tmp_path / "bare.jsonl"
    said = CliRunner().invoke(app, ["data", "prepare", str(made), "--out", str(bare)], catch_exceptions=False).output
    assert "columns left out: dag" in said and "train on SOURCE itself" in said


def test_rows_are_left_out_for_a_reason_that_is_counted(tmp_path: Path) -> None:
    source = _source(tmp_path, [*REASONS.values(), SHOP, REASONS["the last sum is not the answer"]])
    out = tmp_path / "out.jsonl"
    shown = CliRunner().invoke(app, ["data", "gsm8k", str(source), "--out", str(out)], catch_exceptions=False)
    counts = {line[9:]: int(line[:7]) for line in shown.output.splitlines()}
    assert counts.pop(f"kept in {out}") == 1
    assert counts == {"rows read": 6} | dict.fromkeys(REASONS, -1) | {"the last sum is not the answer": -2}


def test_held_out_rows_are_drawn_by_the_seed_and_trained_on_by_nobody(tmp_path: Path) -> None:
    shops = [SHOP.replace("ruler", f"ruler of {length} cm") for length in range(20)]

    def split(seed: int, worked: list[str] = shops) -> tuple[set[str], set[str]]:
        kept = _convert(tmp_path, worked, held_out=5, seed=seed)
        held_out = load_problems(dev_path(tmp_path / "out.jsonl"))
        return {str(row.solution) for row in kept}, {str(row.solution) for row in held_out}

    first, other = split(0), split(1)
    assert (len(first[0]), len(first[1]), first[0] & first[1]) == (15, 5, set())
    assert split(0) == first != other
    left_out = next(worked for worked in shops if any(_plain(worked) in text for text in first[0]))
    assert split(0, [worked for worked in shops if worked != left_out])[1] == first[1]


def test_what_is_held_out_is_not_trained_on_in_another_row(tmp_path: Path) -> None:
    """Six questions in two rows each, with another solution or layout; whatever is drawn, its other row goes."""
    rows = [
        (f"row {n}", {"question": f"How  many, {n // 2}?" if n % 2 else f"how many {n // 2}?", "answer": worked})
        for n, worked in enumerate([SHOP, SHOP.replace("ruler", "pencil")] * 6)
    ]
    out = tmp_path / "out.jsonl"
    report = convert(iter(rows), out, held_out=4)
    asked = [{row.problem.split()[-1] for row in load_problems(path)} for path in (out, dev_path(out))]
    assert (len(asked[0]), len(asked[1]), asked[0] & asked[1]) == (2, 4, set())
    assert report.kept == 4 and report.left_out["asks what is held out"] == 4
    with pytest.raises(UserError, match="12 rows 6 can be used, expected more than the 6 to hold out"):
        convert(iter(rows), out, held_out=6)


def test_held_out_problems_of_an_earlier_call_are_not_put_back(tmp_path: Path) -> None:
    source, out = _source(tmp_path, [SHOP, SHOP.replace("ruler", "pencil")]), tmp_path / "out.jsonl"
    convert(read_source(str(source)), out, held_out=1)
    before = out.read_bytes()
    with pytest.raises(UserError, match=rf"^{dev_path(out)}: held out by an earlier call.* --held-out N again or"):
        convert(read_source(str(source)), out)
    assert out.read_bytes() == before
    assert convert(read_source(str(source)), out, held_out=1).kept == 1
    assert convert(read_source(str(source)), out, bare=True).kept == 2  # which is nothing to train on


def test_bare_keeps_every_row_and_makes_no_graph(tmp_path: Path) -> None:
    problems = _convert(tmp_path, [*REASONS.values(), SHOP], bare=True)
    assert [problem.answer for problem in problems] == ["4", "9", "9", "100", "517.5"]
    assert {problem.dag for problem in problems} == {None}


@pytest.mark.parametrize("record", [{"question": "q", "answer": "4"}, {"problem": "q", "answer": "a #### 4"}])
def test_other_data_is_refused_by_its_line(tmp_path: Path, record: dict[str, str]) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps(record))
    with pytest.raises(UserError, match=re.escape(f"{source}:1")):
        convert(read_source(str(source)), tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


TOO_FEW = "fewer than 2 checkpoints before the answer"


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        ([SHOP], {"held_out": 1}, r"1 row 1 can .* the 1 to hold out\. Lower --held-out or give.*\n +1  rows read"),
        ([SHOP, REASONS[TOO_FEW]], {"held_out": 1}, rf"2 rows 1 can .*--held-out or try --min-ch.*\n +-1  {TOO_FEW}"),
        ([REASONS[TOO_FEW]] * 2, {}, rf"2 rows 0 can .*one\. Try --min-checkpoints 1 .*\n +-2  {TOO_FEW}"),
        (
            ["Two and two.\n#### 4"],
            {},
            r"1 row 0 can .*one\. Make problems .*\(aopsd data prepare\) or give other rows\..*\n +-1  without",
        ),
    ],
)
def test_where_no_row_is_left_the_reasons_are_counted_and_the_option_that_helps_is_named(
    tmp_path: Path, rows: list[str], options: dict[str, int], expected: str
) -> None:
    with pytest.raises(UserError, match=f"(?s)out\\.jsonl: of {expected}"):
        _convert(tmp_path, rows, **options)


def _convert(folder: Path, worked: list[str], **options: int):
    rows = ((f"row {n}", {"question": f"Of what: {text}", "answer": text}) for n, text in enumerate(worked))
    convert(rows, folder / "out.jsonl", **options)
    return load_problems(folder / "out.jsonl")


def _source(folder: Path, worked: list[str]) -> Path:
    path = folder / "rows.jsonl"
    write_jsonl(path, ({"question": f"Of what: {text}", "answer": text} for text in worked))
    return path


def _plain(worked: str) -> str:
    """Without annotations, written out by hand rather than by the product's expression."""
    text = worked.partition("\n####")[0]
    for mark in ("<<3/2=1.5>>", "<<10*1.50=15>>", "<<4*5=20>>", "<<15+20+1000=1,035>>", "<<1035/2=517.5>>"):
        text = text.replace(mark, "")
    return text
