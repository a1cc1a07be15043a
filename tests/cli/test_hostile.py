"""Command lines that are wrong in one place: each ends in one message with the remedy, and nothing is left behind.

The most telling of the inputs of docs/verification.md, `What a hostile user gets`; on the shipped config.
"""

import gzip
import json
import re

import pytest

from tests import REPO

EXAMPLES = REPO / "examples/data"
TRAIN = "train demo --check logger.log_dir=new"
EVALUATE = f"evaluate {REPO}/nemo_aopsd/builtin/model"
LARGE = REPO / "examples/configs/aopsd_qwen3_4b_megatron.yaml"
SERVER = "--base-url http://127.0.0.1:9/v1 --model m"


@pytest.fixture
def aopsd(tmp_path, monkeypatch, command_line):
    """Run a command line in a folder with files of the wrong kind."""
    monkeypatch.chdir(tmp_path)
    row = json.loads((EXAMPLES / "problems.jsonl").read_text(encoding="utf-8").splitlines()[0])
    bare = {key: value for key, value in row.items() if key != "dag"}
    without = {"noid": "id", "noanswer": "answer"}
    rows = {name: [{key: value for key, value in bare.items() if key != gone}] for name, gone in without.items()}
    rows["nodag"] = [bare]
    rows |= {"twice": [row, row], "dag_is_text": [row | {"dag": "a -> b"}], "array": [[1, 2]], "empty": []}
    for name, lines in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("binary.jsonl", "binary.yaml"):
        (tmp_path / name).write_bytes(bytes(range(256)) * 4)
    (tmp_path / "utf16.jsonl").write_bytes(json.dumps(row).encode("utf-16"))
    (tmp_path / "lines.jsonl").write_text(f"[\n{json.dumps(row)},\n{json.dumps(row)}\n]\n")
    (tmp_path / "table.jsonl").write_text('id,problem,answer\n1,"a, b",3\n')
    (tmp_path / "packed.jsonl").write_bytes(gzip.compress(json.dumps(row).encode()))
    (tmp_path / "compared/opsd/seed_0").mkdir(parents=True)
    for name in ("suite.json", "results.md", "opsd/config.yaml", "opsd/seed_0/config.yaml"):
        (tmp_path / "compared" / name).touch()
    (tmp_path / "to_begin").mkdir()
    (tmp_path / "to_begin/suite.json").touch()
    (tmp_path / "loop.yaml").write_text("defaults: loop.yaml\n")
    (tmp_path / "run.yaml").write_text("policy: {model_name: x}\n")
    (tmp_path / "to_fill.yaml").write_text(
        "defaults: demo\npolicy: {model_name: path/to/model}\ndata:\n  train: {data_path: no.jsonl}\n"
    )
    (tmp_path / "members.yaml").write_text("config: run.yaml\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "of_run").mkdir()
    (tmp_path / "of_run/config.yaml").write_text("# aopsd train demo\n")
    return command_line


CASES = [
    ("train aopsd.seed=1", r"aopsd\.seed=1: is a setting; the config comes before settings"),
    ("train of_run", r"of_run: is the folder of a run; expected .*: aopsd train --resume of_run"),
    *((f"{words} of_run", r"such as its of_run/config\.yaml\.\n$") for words in ("diagnose direction", "plan")),
    ("compare embedded --only opds --dry-run", r"--only opds: no such member or run\. Did you mean `opsd`\?"),
    ("compare embedded --only gkd --dry-run", r"--only gkd: no such member or run\. The first is base/seed_0"),
    ("compare embedded --against opds --dry-run", r"--against opds: .* Did you mean `opsd`\?"),
    ("train loop.yaml", r"`defaults` go in a circle.*Remove one"),
    ("train binary.yaml", r"binary\.yaml:2: byte \d+ of the line is not UTF-8\. Save"),
    (f"{TRAIN} --method ''", r"no method `` in"),
    (f"{TRAIN} aopsd..seed=1", r"unknown key `aopsd\.`"),
    (f"{TRAIN} aopsd.max_train_seconds=inf", r"must be null or a finite number above 0; got 'inf'"),
    (f"{TRAIN} aopsd.num_prompts_per_step=1000000", r"must be a whole number from 1 to 100000; got 1000000"),
    (f"{TRAIN} 'aopsd.seed=${{oc.env:NO_SUCH}}'", r"`aopsd\.seed` has no value.*NO_SUCH"),
    (f"{TRAIN} policy.model_name=nowhere data.train.data_path=twice.jsonl", r"no such model.*\n.*Make ids unique"),
    (f"{TRAIN} policy.max_total_sequence_length=100000", r"^error: override: .*512 positions .*Set it to at most 512"),
    (
        "train to_fill.yaml --check logger.log_dir=new",
        r"^error: to_fill\.yaml:2: policy\.model_name=path/to/model: no such model .*\n"
        r"to_fill\.yaml:4: data\.train\.data_path=no\.jsonl: no such file .*Check the path",
    ),
    ("train to_fill.yaml --check --mounts /:/ logger.log_dir=new", r"^error: to_fill\.yaml:2: .*\nto_fill\.yaml:4: "),
    ("plan to_fill.yaml aopsd.engine=local", r"to_fill\.yaml:2: policy\.model_name=path/to/model: no "),
    (f"{TRAIN} data.train.data_path=binary.jsonl", r"binary\.jsonl:1: broken JSON.*Correct the line"),
    (f"{TRAIN} data.train.data_path=utf16.jsonl", r"utf16\.jsonl:1: .*UTF-8"),
    (f"{TRAIN} data.train.data_path=array.jsonl", r"array\.jsonl:1: expected a .*, got a JSON array\. .*json\.load"),
    (f"{TRAIN} data.train.data_path=lines.jsonl", r"^error: lines\.jsonl:1: .* JSON array\. [^\n]*\n$"),
    (
        f"{TRAIN} data.train.data_path=table.jsonl",
        r"^error: table\.jsonl:1: .* \(CSV\)\. [^\n]*< table\.jsonl [^\n]*\n$",
    ),
    (f"{TRAIN} data.train.data_path=packed.jsonl", r"^error: packed\.jsonl:1: .* gzip\. .* gunzip < packed\.jsonl > "),
    ("report compared", r"compared: a comparison, no run\. .*compared/results\.md\. .*compared/opsd/seed_0 and so on"),
    ("report to_begin", r"^error: to_begin: a comparison, no run\. None of its runs has begun\.\n$"),
    ("report compared/opsd", r"compared/opsd: a member of a comparison, no run\. .*compared/opsd/seed_0 and so on"),
    ("train compared/opsd", r"compared/opsd: is a folder; expected .* its compared/opsd/config\.yaml\.\n$"),
    ("train --resume compared/opsd", r"compared/opsd: a member of a comparison, no run"),
    ("evaluate compared --data rows.jsonl", r"compared: a comparison, no run\."),
    ("paired-test compared compared", r"compared: a comparison, no run\."),
    (f"{TRAIN} data.train.data_path=noanswer.jsonl", r"`answer` must be .*\n.*aopsd data prepare noanswer\.jsonl"),
    (f"{TRAIN} data.train.data_path=dag_is_text.jsonl", r"unusable reasoning DAG: malformed"),
    (f"{TRAIN} logger.log_dir=/proc/run", r"/proc: not a folder that can be written .*logger\.log_dir"),
    (f"{TRAIN} logger.swanlab_enabled=true", r"swanlab_enabled is true; the local engine has"),
    ("train demo --mounts /a:/b logger.log_dir=new", r"--mounts goes with --check"),
    ("preview demo --problem train-365", r"Did you mean `train-365-level4`"),
    (f"{EVALUATE} --data empty.jsonl", r"empty\.jsonl: no problem in it"),
    (f"{EVALUATE} --data twice.jsonl", r"twice\.jsonl:2: .*Make ids unique"),
    (f"{EVALUATE} --data nodag.jsonl --samples 1000000", r"from 1 to 100000; got 1000000"),
    (f"{EVALUATE} --data nodag.jsonl --config run.yaml", r"--config run\.yaml: only a checkpoint"),
    ("compare run.yaml --dry-run", r"run\.yaml: no `config`\. A suite has `config:`.*found policy.*Add it, or name"),
    ("compare members.yaml --dry-run", r"no `members`.*Add it"),
    ("compare embedded --out run.yaml --dry-run", r"run\.yaml is a file.*another --out|run\.yaml: not a folder"),
    ("audit label nowhere --name a", r"nowhere: no such run folder"),
    ("data prepare nodag.jsonl --out o.jsonl --split test", r"--split test: is of a data set of the hub"),
    ("data prepare nodag.jsonl --out o.jsonl --against empty.jsonl", r"--against empty\.jsonl: no row in it"),
    ("data prepare nodag.jsonl --out folder", r"folder is a folder; expected a file"),
    ("dag check binary.jsonl", r"none of its \d+ lines is a JSON object"),
    ("dag stats nodag.jsonl --out run.yaml/x.jsonl", r"run\.yaml is a file"),
    (f"dag build noid.jsonl --out d.jsonl {SERVER}", r"`id` must be .*\n.*aopsd data prepare noid\.jsonl"),
    ("dag build nodag.jsonl --out d.jsonl --base-url ftp://x --model m", r"--base-url: expected http://HOST"),
    ("grade nodag.jsonl", r"nodag\.jsonl:1: expected .* id, answer, output, found id, .*labelled cases with --cases\."),
    (f"judge eval --cases array.jsonl --problems {EXAMPLES}/problems.jsonl --config demo", r"array\.jsonl:1: "),
    (
        f"judge eval --cases {EXAMPLES}/judge_cases.jsonl --problems {EXAMPLES}/problems.jsonl --config demo "
        f"--kind {REPO}/examples/my_parts.py:NumbrJudge",
        r"my_parts\.py has no class `NumbrJudge`\. Did you mean `NumberJudge`\?",
    ),
    (f"plan {LARGE} --response 99999", r"--response 99999: more than"),
]


@pytest.mark.parametrize(("line", "pattern"), CASES, ids=[line for line, _ in CASES])
def test_one_message_with_the_remedy_and_nothing_left_behind(aopsd, tmp_path, line, pattern):
    before = sorted(path.name for path in tmp_path.iterdir())
    code, out, err = aopsd(line)
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ") and err.count("error: ") == 1 and "Traceback" not in err
    assert re.search(pattern, err), err
    assert sorted(path.name for path in tmp_path.iterdir()) == before
