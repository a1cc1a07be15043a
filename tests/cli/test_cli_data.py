"""The commands around data, as a user types them."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from nemo_aopsd.cli.app import app
from nemo_aopsd.config.load import load_config
from nemo_aopsd.data.problems import load_problems
from nemo_aopsd.errors import UserError
from nemo_aopsd.files import read_jsonl, write_jsonl
from tests import REPO, raw_graph
from tests.chat_server import ChatServer, Reply
from tests.recorded import answer_well, write_problems

EXAMPLES = REPO / "examples/data"
CASES, PROBLEMS = EXAMPLES / "judge_cases.jsonl", EXAMPLES / "problems.jsonl"


def invoke(*arguments, code=0):
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_build_stats_and_browse(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-very-secret-0123456789")
    problems, out = write_problems(tmp_path / "problems.jsonl", 3), tmp_path / "dags.jsonl"
    with ChatServer(answer_well) as server:
        command = ["dag", "build", problems, "--out", out, "--base-url", server.url, "--model", "m"]
        said = invoke(*command, "--api-key-env", "MY_KEY", "--judge-model", "j", "--temperature", "0.5")
        assert server.headers[0]["authorization"] == "Bearer sk-very-secret-0123456789"
        assert {body["model"] for body in server.bodies} == {"m", "j"}
        assert {body["temperature"] for body in server.bodies} == {0.5}
    assert "3 problems: 3 accepted (0 after repair), 0 rejected; 12 answers, 1200 prompt and 600 answer tokens" in said
    assert "sk-very-secret" not in said
    assert len(load_problems(out)) == 3
    assert "3 graphs, 0 of them with errors" in invoke("dag", "stats", out, "--out", tmp_path / "stats.jsonl")
    assert json.loads((tmp_path / "stats.jsonl").read_text().splitlines()[0])["nodes"] == 3
    assert "3 graphs" in invoke("dag", "browse", out, "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").is_file()


BUILD = ["dag", "build", "in.jsonl", "--out", "out.jsonl"]
JUDGE = ["judge", "eval", "--cases", CASES, "--problems", PROBLEMS]


@pytest.mark.parametrize("command", [BUILD, JUDGE], ids=["build", "judge"])
def test_a_key_that_no_header_can_carry_is_refused_before_anything_is_sent(command, monkeypatch):
    monkeypatch.setenv("MY_KEY", "hush\u00e4hush")
    refused = pytest.raises(UserError, match=r"--api-key-env: .* MY_KEY is not ASCII")
    with ChatServer(answer_well) as server, refused as caught:
        invoke(*command, "--base-url", server.url, "--model", "m", "--api-key-env", "MY_KEY")
    assert "hush" not in str(caught.value) and server.bodies == []


def test_reasons_of_rejection_are_listed_and_no_graph_at_all_is_no_success(tmp_path):
    problems, out = write_problems(tmp_path / "problems.jsonl", 2), tmp_path / "dags.jsonl"
    with ChatServer(lambda *_: Reply("hm")) as server:
        said = invoke("dag", "build", problems, "--out", out, "--base-url", server.url, "--model", "m", code=1)
    assert "2 problems: 0 accepted (0 after repair), 2 rejected" in said and "2  repair: unreadable" in said


def test_prepare(tmp_path):
    source = tmp_path / "s.jsonl"
    source.write_text('{"q": "Find x.", "answer": "7"}\n{"q": "find x", "answer": "7"}\n')
    said = invoke("data", "prepare", source, "--out", tmp_path / "p.jsonl", "--map", "problem=q")
    assert "-1  same problem as an earlier row" in said
    assert len(load_problems(tmp_path / "p.jsonl")) == 1


def test_judge_at_a_server(tmp_path):
    problems, cases = tmp_path / "p.jsonl", tmp_path / "c.jsonl"
    write_jsonl(problems, [{"id": "p", "problem": "Find x.", "answer": "7", "dag": raw_graph("12", ["12"])}])
    write_jsonl(cases, [{"problem_id": "p", "attempt": "x", "established": ["1"]}])
    with ChatServer(lambda *_: Reply('["1", "2"]')) as server:
        command = ["judge", "eval", "--cases", cases, "--problems", problems, "--out", tmp_path / "v.jsonl"]
        said = invoke(*command, "--base-url", server.url, "--model", "m")
    assert "before closure: precision 0.500 (1 of 2" in said and "recall 1.000 (1 of 1" in said
    assert json.loads((tmp_path / "v.jsonl").read_text())["claimed"] == ["1", "2"]
    for options, message in (
        ([], "--base-url and --model .* or --config"),
        (["--base-url", "http://h"], "--base-url and --model"),
        (["--model", "m"], "--base-url and --model"),
        (["--config", "c.yaml", "--model", "m"], "expected one judge"),
    ):
        with pytest.raises(UserError, match=message):
            invoke(*command, *options)


def test_a_judge_is_measured_on_attempts_that_the_command_makes(tmp_path):
    problems, out = REPO / "nemo_aopsd/builtin/data/heldout.jsonl", tmp_path / "v.jsonl"
    with ChatServer(lambda *_: Reply("[]")) as server:
        command = ["judge", "eval", "--problems", problems, "--base-url", server.url, "--model", "m", "--seed", "3"]
        said = invoke(*command, "--limit", "5", "--out", out)
        assert len(server.bodies) == 10  # each once with an injection
    made, caveat, drawn, *_ = said.splitlines()
    assert made.startswith("attempts made of the solutions of 400 of 400 problems: 400 end behind ")
    assert "--cases" in caveat and drawn.startswith("5 of 800 attempts, seed 3 (another --seed ")
    records = [json.loads(line) for line in out.read_text().splitlines()]
    solutions = {problem.id: problem.solution for problem in load_problems(problems)}
    assert len(records) == 5 and {record["kind"] for record in records} == {"prefix", "cut"}
    assert all(solutions[record["problem_id"]].startswith(record["attempt"]) for record in records)
    assert {record["seed"] for record in records} == {3}


def test_importing_the_commands_loads_nothing_heavy():
    script = "import nemo_aopsd.cli.app, nemo_aopsd.graphs.pipeline.pipeline, nemo_aopsd.evaluation.judge_eval, sys\n"
    script += "print([m for m in ('torch', 'transformers', 'openai', 'pyarrow', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"


def test_judge_of_a_config(tmp_path):
    """The built-in tiny model judges attempts at its own problems in all ways, by the code that training uses."""
    problems, config = REPO / "nemo_aopsd/builtin/data/heldout.jsonl", REPO / "examples/configs/aopsd_tiny_cpu.yaml"
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep/er")  # whose parent is another folder than the link's
    cases, out, calibrated = tmp_path / "c.jsonl", tmp_path / "v.jsonl", tmp_path / "link/calibrated.yaml"
    rows = [row for _, row in read_jsonl(problems)][:2]
    nodes = [[node["id"] for node in row["dag"]["nodes"]] for row in rows]
    lines = [
        {"problem_id": row["id"], "attempt": attempt, "established": established}
        for row, ids in zip(rows, nodes, strict=True)
        for attempt, established in ((row["solution"], ids), ("", []))
    ]
    write_jsonl(cases, lines)
    command = ["judge", "eval", "--cases", cases, "--problems", problems, "--config", config]
    short = f"logger.log_dir={tmp_path / 'run'}", "aopsd.judge.max_new_tokens=40"
    said = invoke(*command, "--out", out, "--calibrate", calibrated, *short)
    assert [line.split(" ")[0] for line in said.splitlines() if line.startswith(("list", "log", "evid"))] == [
        *("list:", "log_odds,", "evidence:", "log_odds,")
    ]
    assert said.count("injections that fooled the judge") == 4 and "AUC of the log-odds" in said
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["judge"] for record in records] == ["list"] * 4 + ["log_odds"] * 4 + ["evidence"] * 4
    assert [record["established"] for record in records[:2]] == [sorted(nodes[0]), []]
    for record in records[4:8]:
        odds = json.loads(record["judge_text"])
        assert record["claimed"] == sorted(node for node, value in odds.items() if value > 0)
    judge = load_config(calibrated, [f"logger.log_dir={tmp_path / 'run'}"]).aopsd.judge
    assert (judge.kind, judge.model) == (
        "log_odds",
        "teacher",
    ) and f"log_odds, threshold {judge.threshold:g}, fitted" in said
    assert judge.max_new_tokens == load_config(config, []).aopsd.judge.max_new_tokens  # the parent's
    assert f"aopsd.judge.threshold={judge.threshold:g}" in said and said.endswith(f"{' '.join(short)}\n")
    model = shutil.copytree(REPO / "nemo_aopsd/builtin/model", tmp_path / "other")
    checked = invoke("train", calibrated, "--check", f"policy.model_name={model}", *short)
    assert str(model) in checked and not (tmp_path / "run").exists()
    for options, message in (
        (["--base-url", "http://h", "--model", "m", "a=1"], "a=1: .*--config"),
        (["--base-url", "http://h", "--model", "m", "--kind", "log_odds"], "--kind log_odds.*--config"),
        (["--base-url", "http://h", "--model", "m", "--calibrate", calibrated], "^--calibrate needs.*--config"),
        (["--base-url", "http://h", "--model", "m", "--kind", "j.py:Mine"], "j.py:Mine: .*--config"),
        (["--config", config, "--kind", "list", "--calibrate", calibrated], "--kind list has none. Leave --kind out"),
        (["--config", config, "--kind", "lst"], "--kind lst: expected list, log_odds, .* Did you mean `list`"),
        (["--config", config, "--calibrate", cases], "--calibrate: would write"),
    ):
        with pytest.raises(UserError, match=message):
            invoke(*command[:6], *options)


def test_a_judge_of_ones_own_is_measured_beside_ours_or_alone(tmp_path):
    """`NumberJudge` asks no model, so its verdicts are known: the statement's last number stands in the attempt."""
    problems, out = REPO / "nemo_aopsd/builtin/data/heldout.jsonl", tmp_path / "v.jsonl"
    mine = f"{REPO / 'examples/my_parts.py'}:NumberJudge"
    command = ["judge", "eval", "--problems", problems, "--config", "demo", "--limit", "2", "--out", out]
    invoke(*command, "--kind", mine)
    alone = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["judge"] for record in alone] == [mine] * 2
    for record in alone:
        statements = {p.id: p for p in load_problems(problems)}[record["problem_id"]].graph.nodes(data="statement")
        last = {node: re.findall(r"\d+", text)[-1] for node, text in statements}
        numbers = re.findall(r"\d+", record["attempt"])
        assert record["claimed"] == sorted(node for node, number in last.items() if number in numbers)
    invoke(*command, f"aopsd.judge.kind={mine}", "aopsd.judge.max_new_tokens=4")
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["judge"] for record in records[::2]] == ["list", "log_odds", "evidence", mine]
    assert records[6:] == alone
    with pytest.raises(UserError, match=r"no_such\.py"):
        invoke(*command, "--kind", "no_such.py:Mine")


def test_a_judge_is_told_where_the_tokenizer_has_erased_the_questions(command_line):
    judge = f"--config demo --kind {REPO / 'examples/my_parts.py'}:NumberJudge"
    code, _, err = command_line(f"judge eval --cases {CASES} --problems {PROBLEMS} --limit 4 {judge}")
    assert code == 0 and "warning: 4 of 4 questions are mostly unknown tokens" in err


@pytest.mark.parametrize("option", ["--temperature", "--timeout"])
def test_numbers_of_a_build_are_finite(tmp_path, option):
    with pytest.raises(UserError, match=f"{option} inf: expected a finite number"):
        invoke("dag", "build", "p.jsonl", "--out", "d.jsonl", "--base-url", "http://h", "--model", "m", option, "1e400")
