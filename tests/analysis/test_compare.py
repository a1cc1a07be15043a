"""`aopsd compare` with a stand-in for `aopsd train`: what runs and when, what a kill leaves, and what is refused."""

import csv
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_aopsd import engines
from nemo_aopsd.analysis.suite import comparison, processes
from nemo_aopsd.analysis.suite.folder import Run
from tests.cli.test_cli import row, write_rows
from tests.fake_train import CHILD, REPO, STEPS, Forked

CONFIG = """\
policy: {model_name: tables, max_total_sequence_length: 4096, generation: {max_new_tokens: 12}}
data: {train: {data_path: problems.jsonl}}
logger: {log_dir: run}
aopsd: {evaluation: {data_path: held_out.jsonl, num_samples: 4, max_new_tokens: 12}}
"""
SUITE = """\
config: run.yaml
reference: opsd
members:
  base: {config: none.yaml, settings: {aopsd: {max_num_steps: 0}}}
  opsd: {config: none.yaml, settings: {env: {skill: 0.6}}}
  mine: {config: none.yaml, settings: {env: {skill: 0.9, metrics: {train/supervision_bytes_per_token: 13}}}}
"""
# In a fork of a test: the suite starts real processes, as in use.
REAL_SUITE = """\
import subprocess
from nemo_aopsd.analysis.suite import processes
from nemo_aopsd.cli import main
processes.subprocess = subprocess
main()
"""


def test_a_suite_tells_now_and_then_what_is_running(tmp_path):
    lines, now = [], 0.0
    run = SimpleNamespace(label="mine, seed 0", log=tmp_path / "log")
    run.log.write_text("$ aopsd train\nstep 3/9\n", encoding="utf-8")
    pool = processes.Pool(1, 1, lambda run: None, lines.append, clock=lambda: now)
    pool.active[0] = run, None
    for seconds in (processes._EVERY - 1, 1, 1, processes._EVERY):
        now += seconds
        pool._tell_running()
    assert lines == ["running mine, seed 0: step 3/9"] * 2


def test_an_ended_run_says_how_long_the_rest_takes_once_one_has_trained(tmp_path, monkeypatch):
    """Two at a time: the evaluation of the model as it is tells nothing, and neither does a run that fails."""
    monkeypatch.setattr(processes, "_PAUSE", 0)
    now, lines = 0.0, []
    base, *others = runs = [Run("mine", seed, tmp_path) for seed in range(5)]
    ends = {base: 10, others[0]: 20, others[1]: 110, others[2]: 130, others[3]: 240}

    class Timed(processes.Pool):
        def _start(self, run):
            self.active[min({0, 1} - self.active.keys())] = run, None

        def _ended(self):
            nonlocal now
            now = min(ends[run] for run, _ in self.active.values())
            for slot, (run, _) in list(self.active.items()):
                if ends[run] == now:
                    del self.active[slot]
                    yield run, "broken" if run == others[0] else None

    Timed(2, 1, lambda run: base, lines.append, clock=lambda: now).work(runs)
    assert [line for line in lines if "/5" in line] == [
        "1/5 done mine/seed_0",
        "2/5 failed mine/seed_1: broken",
        "3/5 done mine/seed_2; about 1 min 40 s left, at 1 min 40 s a run",  # one has 10 s left, one begins
        "4/5 done mine/seed_3; about 1 min 25 s left, at 1 min 45 s a run",
        "5/5 done mine/seed_4",
    ]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a suite; `aopsd train` is the stand-in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(processes, "CHILD", CHILD)
    monkeypatch.setattr(processes, "_PAUSE", 0.01)
    stand_in = SimpleNamespace(Popen=Forked, PIPE=None, STDOUT=None)
    monkeypatch.setattr(processes, "subprocess", stand_in)
    monkeypatch.setattr(comparison, "suite_figure", lambda rows, reference: "<svg/>")  # test_compare_results draws it
    monkeypatch.setattr(engines, "pick", lambda config: SimpleNamespace(check=lambda config: None))
    Path("run.yaml").write_text(CONFIG)
    Path("none.yaml").write_text("aopsd: {}\n")
    Path("suite.yaml").write_text(SUITE)
    write_rows("problems.jsonl", *map(row, range(8)))
    write_rows("held_out.jsonl", *map(row, range(8, 12)))
    return tmp_path


@pytest.fixture
def aopsd(place, command_line):
    """Run a command line; returns (exit code, stdout, stderr)."""
    return command_line


def table(out="out"):
    with open(f"{out}/results.csv", newline="") as file:
        return {line["member"]: line for line in csv.DictReader(file)}


def add_member(line):
    Path("suite.yaml").write_text(SUITE + f"  {line}\n")


def times(path):
    """How often each epoch was evaluated in that run."""
    return (Path(path) / "evaluated.txt").read_text().split() if (Path(path) / "evaluated.txt").exists() else []


def test_a_suite_gives_one_table_and_nothing_is_done_twice(aopsd):
    code, out, _ = aopsd("compare suite.yaml --seeds 2 --jobs 3 --out out")
    assert code == 0 and out.endswith("out/results.md\n")
    assert "| member | seeds | pass@1 | against base | against opsd |" in out and "| mine | 2 | " in out
    found = table()
    assert list(found) == ["base", "opsd", "mine"]
    assert found["mine"]["supervision bytes per token"] == "13.0" and found["opsd"]["supervision bytes per token"] == ""
    assert float(found["mine"]["response tokens"]) == 8 * sum(10 + step for step in range(1, STEPS + 1))
    assert float(found["mine"]["seconds per step"]) == 0.5 and float(found["base"]["steps"]) == 0
    counts = [
        sum(json.loads(Path(f"out/mine/seed_{seed}/eval/epoch_001.json").read_text())["correct_per_problem"].values())
        for seed in range(2)
    ]
    assert int(found["mine"]["correct"]) == sum(counts) and int(found["mine"]["responses"]) == 2 * 30 * 4
    assert float(found["mine"]["pass@1"]) == pytest.approx(sum(counts) / 240)
    difference = float(found["mine"]["pass@1"]) - float(found["opsd"]["pass@1"])
    assert float(found["mine"]["against opsd"]) == pytest.approx(difference)
    page = Path("out/results.md").read_text()
    assert "No `train/supervision_bytes_per_token` in the metrics of opsd:" in page
    assert [times(f"out/{name}/seed_1") for name in ("base", "opsd", "mine")] == [["0"], ["1"], ["1"]]  # shared

    stamps = {path: path.stat().st_mtime_ns for path in Path("out").rglob("seed_*/*")}
    assert aopsd("compare suite.yaml --seeds 2 --jobs 3 --out out")[0] == 0
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("seed_*/*")} == stamps
    assert Path("out/results.md").read_text() == page
    assert aopsd("compare suite.yaml --seeds 2 --out out --against mine")[0] == 0
    assert float(table()["opsd"]["against mine"]) == pytest.approx(-difference)
    assert "--against mine" in Path("out/results.md").read_text()
    code, _, error = aopsd("compare suite.yaml --out out --against yours")
    assert code == 2 and "--against yours" in error and "base, opsd, mine" in error
    assert aopsd("compare suite.yaml --seeds 3 --out out")[0] == 0  # one more seed of each
    assert table()["mine"]["seeds"] == "3"


def test_a_crashed_member_is_shown_and_the_others_are_not_lost(aopsd):
    add_member("broken: {config: none.yaml, settings: {env: {fails: no room left}}}")
    code, _, err = aopsd("compare suite.yaml --seeds 2 --jobs 2 --out out")
    assert code == 1
    assert "failed: broken/seed_0: RuntimeError: no room left\n        log: out/broken/seed_0.log" in err
    assert "2 of 8 runs failed" in err
    assert list(table()) == ["base", "opsd", "mine"]
    page = Path("out/results.md").read_text()
    assert "- broken/seed_1: RuntimeError: no room left (`out/broken/seed_1.log`)" in page
    assert len(Path("out/broken/seed_0/metrics.jsonl").read_text().splitlines()) == 1

    add_member("broken: {config: none.yaml}")  # corrected, but its first step was made with the old settings
    code, _, err = aopsd("compare suite.yaml --seeds 2 --out out")
    assert code == 2 and "broken: env.fails: 'no room left' -> None" in err and "delete the folders" in err
    for path in sorted(Path("out/broken").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert aopsd("compare suite.yaml --seeds 2 --out out")[0] == 0
    assert table()["broken"]["seeds"] == "2"


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_killed_anywhere_the_same_command_ends_in_the_same_table(aopsd, signal_number):
    text = re.sub(r"(?m)^  opsd:.*\n|^reference:.*\n", "", SUITE)
    Path("suite.yaml").write_text(text.replace("skill: 0.9", "skill: 0.9, seconds: 0.2"))
    assert aopsd("compare suite.yaml --seeds 1 --jobs 2 --out whole")[0] == 0
    words = ["compare", "suite.yaml", "--seeds", "1", "--jobs", "2", "--out", "out"]
    with open("said.txt", "w") as said:
        process = Forked([sys.executable, "-c", REAL_SUITE, *words], stdout=said)
    wait_until(lambda: Path("out/mine/seed_0/metrics.jsonl").exists())
    process.send_signal(signal_number)
    process.communicate()
    assert not Path("out/mine/seed_0.finished.json").exists()
    wait_until(lambda: not alive(Path("out")))  # no run goes on by itself
    assert aopsd("compare suite.yaml --seeds 1 --jobs 2 --out out")[0] == 0
    assert table("out") == table("whole")
    assert times("out/mine/seed_0") == ["1"]


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(out):
    found = [int(path.read_text().split()[0]) for path in out.glob("*/seed_*/.lock")]
    return [process for process in found if Path(f"/proc/{process}/cmdline").exists() and not_zombie(process)]


def not_zombie(process):
    try:
        return b"fake_train" in Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_folder_that_others_use_is_refused(aopsd, place):
    from nemo_aopsd.run.access import lock

    with lock(place / "out"):
        code, _, err = aopsd("compare suite.yaml --seeds 1 --out out")
    assert code == 2 and "choose another --out" in err
    assert not Path("out").exists()
    Path("out").mkdir()
    Path("out/aime25.settings.json").touch()
    for options in ("", "--dry-run", "--only base"):
        code, _, err = aopsd(f"compare suite.yaml --seeds 1 --out out {options}")
        assert code == 2 and "out: holds an evaluation of `aopsd evaluate`. Choose another folder." in err
    assert sorted(path.name for path in Path("out").iterdir()) == ["aime25.settings.json"]


def test_what_changed_is_refused_and_said_and_new_members_are_told(aopsd):
    assert aopsd("compare suite.yaml --seeds 1 --jobs 3 --out out")[0] == 0
    before = Path("out/results.md").read_text()
    longer = "config: run.yaml\nsettings: {aopsd: {max_num_epochs: 9}}"
    for old, new, message in (
        ("skill: 0.9", "skill: 0.8", r"mine: env\.skill: 0\.9 -> 0\.8"),
        ("config: run.yaml", longer, r"opsd: aopsd\.max_num_epochs: 3 -> 9"),
    ):
        Path("suite.yaml").write_text(SUITE.replace(old, new))
        for dry in ("", "--dry-run"):
            code, _, err = aopsd(f"compare suite.yaml --seeds 1 --out out {dry}")
            assert code == 2 and re.search(message, err) and "other settings, problems or weights" in err
    assert Path("out/results.md").read_text() == before

    Path("suite.yaml").write_text(SUITE.replace("  mine:", "  yours:"))
    code, out, _ = aopsd("compare suite.yaml --seeds 1 --out out")
    assert code == 0 and "new since the last time: yours" in out and "no longer in the suite: mine" in out
    assert list(table()) == ["base", "opsd", "yours"]

    write_rows("held_out.jsonl", *map(row, range(9, 13)))
    code, _, err = aopsd("compare suite.yaml --seeds 1 --out out")
    assert code == 2 and "the problems in held_out.jsonl" in err


def test_another_model_under_the_same_name_is_refused(aopsd, monkeypatch):
    def model(folder, byte):
        Path(folder).mkdir()
        Path(folder, "config.json").write_text("{}")
        Path(folder, "model.safetensors").write_bytes(byte + bytes(3 << 20) + byte)  # the middle is not read

    def compare(options="--seeds 1"):
        return aopsd(f"compare suite.yaml --jobs 3 --out out {options}")

    def point_to(folder):
        Path("model").unlink(missing_ok=True)
        Path("model").symlink_to(folder)

    model("one", b"1")
    model("copy", b"1")
    model("two", b"2")
    Path("run.yaml").write_text(CONFIG.replace("tables", "model"))
    point_to("two")
    assert compare("--seeds 1 --dry-run")[0] == 0
    point_to("one")
    assert compare()[0] == 0
    point_to("copy")  # what the files say counts, not where they are or when they were written
    assert compare("--seeds 2")[0] == 0
    point_to("two")
    for options in ("", "--dry-run", "--only mine"):
        code, _, err = compare(f"--seeds 1 {options}")
        assert code == 2 and "other settings, problems or weights:\n  the model in model\n" in err
    point_to("one")
    Path("one/config.json").write_text('{"a": 1}')
    assert "  the model in model\n" in compare()[2]
    Path("one/config.json").write_text("{}")

    suite = json.loads(Path("out/suite.json").read_text())
    models = suite.pop("models")
    Path("out/suite.json").write_text(json.dumps(suite))  # as it was written before it had models
    assert compare()[0] == 0 and json.loads(Path("out/suite.json").read_text())["models"] == models

    edit = "import pathlib; pathlib.Path('one/model.safetensors').write_bytes(b'3')"
    monkeypatch.setattr(processes, "CHILD", f"{CHILD}; {edit}")
    code, _, err = aopsd("compare suite.yaml --seeds 1 --out while")
    assert code == 1 and re.search(r"failed: mine/seed_0: not started: .* the model in model ", err)


def test_a_class_of_ones_own_and_a_judge_that_changed_are_refused(aopsd):
    """The seeds of a member would be of two methods, or of two judges."""
    parts = (REPO / "examples/my_parts.py").read_text()
    Path("parts.py").write_text(parts)
    Path("judge").mkdir()
    Path("judge/config.json").write_text("{}")
    own = "{aopsd: {weighting: 'parts.py:RisingWeights', judge: {model: judge}}}"
    Path("suite.yaml").write_text(f"config: run.yaml\nmembers: {{mine: {{config: none.yaml, settings: {own}}}}}\n")
    assert aopsd("compare suite.yaml --seeds 1 --out out")[0] == 0
    kept = Path("out/mine/seed_0/extensions/parts.py")  # as training keeps it
    kept.parent.mkdir()
    kept.write_text(parts)
    assert aopsd("compare suite.yaml --seeds 2 --out out")[0] == 0
    Path("parts.py").write_text(parts + "\n")
    code, _, err = aopsd("compare suite.yaml --seeds 3 --out out")
    assert code == 2 and re.search(r"parts\.py: has changed .*aopsd\.weighting.* another --out", err)
    Path("parts.py").write_text(parts)
    Path("judge/config.json").write_text('{"a": 1}')
    code, _, err = aopsd("compare suite.yaml --seeds 3 --out out")
    assert code == 2 and "the model in judge" in err


def test_a_config_that_is_edited_while_the_suite_runs_starts_no_further_run(aopsd, monkeypatch):
    edit = "import pathlib; pathlib.Path('run.yaml').write_text(pathlib.Path('run.yaml').read_text() + 'env: {x: 1}')"
    monkeypatch.setattr(processes, "CHILD", f"{CHILD}; {edit}")
    code, _, err = aopsd("compare suite.yaml --seeds 1 --jobs 1 --out out")
    assert code == 1 and [path.parent.name for path in Path("out").glob("*/*.finished.json")] == ["base"]
    assert re.search(r"failed: mine/seed_0: not started: .* env\.x", err)


def test_a_damaged_memory_of_the_suite_is_named(aopsd):
    Path("out").mkdir()
    Path("out/suite.json").write_bytes(b"{}")
    code, _, err = aopsd("compare suite.yaml --seeds 1 --out out")
    assert code == 2 and "out/suite.json: " in err and "Restore it, or choose another --out." in err


def test_a_dry_run_shows_the_plan_and_writes_nothing(aopsd):
    code, out, _ = aopsd("compare suite.yaml --seeds 2 --jobs 2 --out out --dry-run")
    assert code == 0 and "6 runs, 2 at a time" in out and "mine" in out
    assert "AOPSD: frontier of" in out and "The model as it is" in out  # what a member is, not only how it is called
    assert not Path("out").exists()
    assert "warning" not in out
    suite = Path("suite.yaml").read_text()
    grouped = "members:\n  grouped: {config: none.yaml, settings: {aopsd: {num_generations_per_prompt: 4}}}"
    Path("suite.yaml").write_text(suite.replace("members:", grouped, 1))
    told = aopsd("compare suite.yaml --out out --dry-run")[1]
    assert re.search(r"warning: a step of grouped has (\d+) answers, one of \w+ (\d+): the difference may be", told)
    members = "  aopsd:\n  own: {method: aopsd, settings: {aopsd: {curriculum: {name: shuffle}}}}\n"
    Path("suite.yaml").write_text(suite + members + "settings: {aopsd: {curriculum: {name: shuffle}, seed: 7}}\n")
    [lost] = [line for line in aopsd("compare suite.yaml --out out --dry-run")[1].splitlines() if "goes over" in line]
    assert lost.startswith("warning: aopsd has aopsd.curriculum.name=competence: its method goes over the suite's")
    Path("suite.yaml").write_text(suite)
    named = aopsd("compare suite.yaml --seeds 2 --out out --only mine/seed_1 --only opsd --dry-run")[1].splitlines()
    assert [line.split()[0] for line in named] == ["opsd", "mine", "3"] and ": 1 to run, " in named[1]


def test_one_run_for_an_element_of_a_job_array(aopsd):
    code, out, _ = aopsd("compare suite.yaml --seeds 2 --out out --only mine/seed_1")
    assert code == 0 and len(shown(out)) == 1 and "\n1 of 1 run finished. " in out
    assert "/results.md: aopsd compare suite.yaml --seeds 2 --out out\n" in out
    assert [path.name for path in Path("out").glob("*/*.finished.json")] == ["seed_1.finished.json"]
    assert not Path("out/results.md").exists()
    assert times("out/mine/seed_1") == ["0", "1"]  # nobody had evaluated the untrained model
    code, _, err = aopsd("compare suite.yaml --seeds 1 --out out --only mine/seed_1")
    assert code == 2 and "--only mine/seed_1: no such member or run" in err


def shown(out):
    """First cells of the table's rows, head and rule left out."""
    return [line.split("|")[1].strip() for line in out.splitlines() if line.startswith("|")][2:]


def test_named_members_are_shown_beside_the_reference_and_nothing_is_written(aopsd):
    command = "compare suite.yaml --seeds 1 --out out --only base --only mine"
    assert aopsd(command)[0] == 0
    for again, members in (("", ["base", "mine"]), (" --against opsd", ["base", "mine"])):
        code, out, _ = aopsd(command + again)
        assert code == 0 and shown(out) == members and "2 of 2 runs finished" in out
    assert not Path("out/results.md").exists()
    assert aopsd("compare suite.yaml --seeds 1 --out out")[0] == 0
    assert shown(aopsd(command)[1]) == ["base", "opsd", "mine"]  # opsd is the suite's reference
    assert shown(aopsd(command + " --against base")[1]) == ["base", "mine"]


@pytest.mark.parametrize(("asked", "threads"), [("", "2"), ("1", "1")])  # 9 // 4, or what the user wants
def test_cores_and_gpus_are_shared_out(aopsd, monkeypatch, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(9)), raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    add_member("more: {config: none.yaml, settings: {env: {seconds: 0.2}}}")
    assert aopsd("compare suite.yaml --seeds 1 --jobs 4 --out out")[0] == 0
    seen = [json.loads(path.read_text()) for path in Path("out").glob("*/seed_0/environment.json")]
    assert {env["OMP_NUM_THREADS"] for env in seen} == {threads}
    assert {env["CUDA_VISIBLE_DEVICES"] for env in seen} == {"4", "7"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("members: {base: }", r"suite\.yaml: no `config`\. A suite has"),
        ("config: run.yaml\nmembers: {}", r"suite\.yaml:2: `members`: "),
        ("config: nowhere.yaml\nmembers: {a: }", r"suite\.yaml:1: there is no file .*nowhere\.yaml"),
        ("config: run.yaml\nmembers: {a: {method: opds}}", r"suite\.yaml:2: member `a`: no method `opds`"),
        (
            "config: run.yaml\nmembers: {mine: }",
            r"no method `mine` .* any name with its method: `mine: {method: NAME}`",
        ),
        ("config: run.yaml\nmembers:\n  a/b: {config: none.yaml}", r"suite\.yaml:3: `members\.a/b`: "),
        ("config: run.yaml\nmembers: {a: {confg: x}}", r"suite\.yaml:2: unknown .*`members\.a\.confg`.*`config`\?"),
        ("config: run.yaml\nmembers: [aopsd, grpo]", r"suite\.yaml:2: `members`: expected NAME: .*\['aopsd', 'grpo'\]"),
        (
            "config: run.yaml\nmembers: {b: aopsd}",
            r"suite\.yaml:2: `members\.b`: expected `{method: NAME}`.* found 'aopsd'",
        ),
        (
            "config: run.yaml\nmembers: {b: {aopsd: {seed: 3}}}",
            r"Expected method, config, settings\. Did you mean `settings: {aopsd: \.\.\.}`\?",
        ),
        ("config: run.yaml\naopsd: {seed: 3}\nmembers: {b: }", r"unknown key `aopsd`.* `settings: {aopsd: \.\.\.}`\?"),
        ("config: run.yaml\nmembers: {a: {config: none.yaml, method: b}}", r"has `config` and `method`"),
        (
            "config: run.yaml\nreference: mien\nmembers: {mine: {config: none.yaml}}",
            r"`reference` is 'mien', which is no member: mine\. Did you mean `mine`\?",
        ),
        ("config: run.yaml\nsettings: 3\nmembers: {a: {config: none.yaml}}", r"suite\.yaml:2: `settings`: .* found 3"),
        ("defaults: suite.yaml", r"`defaults` go in a circle"),
        (
            "config: run.yaml\nmembers: {a: {config: none.yaml, settings: {aopsd: {sed: 1}}}}",
            r"^error: suite\.yaml: member `a`: unknown key `aopsd\.sed`",
        ),
        (
            "config: run.yaml\nmembers:\n  a: {config: none.yaml}\n"
            "  b: {config: none.yaml, settings: {aopsd: {evaluation: {num_samples: 2}}}}",
            r"`aopsd\.evaluation\.num_samples` is 4 for a and 2 for b",
        ),
        (
            "config: run.yaml\nsettings: {aopsd: {evaluation: {data_path: null}}}\nmembers: {a: {config: none.yaml}}",
            r"data_path is null",
        ),
        (
            "config: run.yaml\nsettings: {data: {train: {data_path: no.jsonl}}}\nmembers: {a: {config: none.yaml}}",
            r"^error: suite\.yaml: member `a`: data\.train\.data_path=no\.jsonl: no such file",
        ),
        (
            "config: run.yaml\nmembers: {a: {config: none.yaml, settings: {aopsd: {context: {kind: plan}}}}}",
            r"member `a`: .*`plan`",
        ),
    ],
)
def test_what_is_wrong_with_a_suite_is_one_message(aopsd, text, message):
    Path("suite.yaml").write_text(text)
    code, _, err = aopsd("compare suite.yaml --out out")
    assert code == 2 and err.startswith("error: ") and re.search(message, err) and "Traceback" not in err
    assert not list(Path(".").glob("out/*/config.yaml"))


def test_a_method_goes_over_what_all_share_and_a_member_over_its_method(aopsd):
    Path("none.yaml").write_text("aopsd: {max_num_steps: 2, max_num_epochs: 5}\n")
    shared = "settings: {aopsd: {max_num_steps: 1, max_num_epochs: 6, num_prompts_per_step: 4}}\n"
    Path("sub").mkdir()
    Path("sub/other.yaml").write_text("defaults: ../suite.yaml\n" + shared)  # a suite on top of another
    assert aopsd("compare sub/other.yaml --seeds 1 --jobs 3 --out out")[0] == 0
    assert [table()[name]["steps"] for name in ("base", "opsd", "mine")] == ["0.0", "2.0", "2.0"]
    text = Path("out/base/seed_0/config.yaml").read_text()
    assert "max_num_epochs: 5" in text and "num_prompts_per_step: 4" in text
