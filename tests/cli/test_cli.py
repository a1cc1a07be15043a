"""The `aopsd` command on an engine of two small tables: what works, and one message and exit code 2 for what cannot."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_aopsd import engines, prompts
from nemo_aopsd.cli import app as cli
from nemo_aopsd.cli import main, train
from nemo_aopsd.data import check as dag_files
from nemo_aopsd.run.access import lock
from nemo_aopsd.run.folder import settings_text
from tests import REPO, raw_graph
from tests.fakes import make_engine

CONFIG = """\
policy: {model_name: tables, max_total_sequence_length: 4096, generation: {max_new_tokens: 12}}
data: {train: {data_path: problems.jsonl}}
logger: {log_dir: run}
checkpointing: {save_period: 1}
aopsd:
  num_prompts_per_step: 4
  max_num_epochs: 1
  curriculum: {num_initial_attempts: 1}
  evaluation: {data_path: held_out.jsonl, num_samples: 2, max_new_tokens: 12}
"""


def row(index, **changes):
    graph = raw_graph({node: f"x{node} = {index}" for node in "abc"}, ["ac", "bc"])
    return {"id": f"p{index}", "problem": f"What is {index} + 1?", "answer": str(index + 1), "dag": graph} | changes


def write_rows(name, *rows):
    with open(name, "wb") as file:
        for line in rows:
            file.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")


@pytest.fixture
def aopsd(tmp_path, monkeypatch, command_line):
    """Run a command line in a folder with a config and problems; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(CONFIG)
    write_rows("problems.jsonl", *map(row, range(8)))
    write_rows("held_out.jsonl", *map(row, range(8, 12)))
    fake = SimpleNamespace(check=lambda config, elsewhere=False: None, build=lambda config: make_engine())
    monkeypatch.setattr(engines, "pick", lambda config: fake)
    monkeypatch.setattr(train, "find_recipe", lambda path: tmp_path / "run.yaml")
    return command_line


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# What works


def test_check_reads_everything_and_writes_nothing(aopsd, tmp_path):
    before = listing(tmp_path)
    code, out, err = aopsd("train run.yaml --check aopsd.num_prompts_per_step=8")
    assert (code, err) == (0, "")
    assert (
        "8 from problems.jsonl" in out
        and "4 held-out problems, from held_out.jsonl" in out
        and "1 step of 8 answers an epoch" in out
    )
    assert out.splitlines()[-1].startswith("ok: settings, problems. Not checked: lengths, for the tokenizer of tables")
    few = "1 step of 8 answers an epoch (fewer problems than a step's 12)"
    assert few in " ".join(aopsd("train run.yaml --check aopsd.num_prompts_per_step=12")[1].split())
    assert "Check the exponent" in aopsd("train run.yaml --check policy.optimizer.kwargs.lr=1000")[2]
    assert listing(tmp_path) == before
    Path("x.gguf").touch()
    told = "lengths, for the tokenizer of x.gguf is in a GGUF file, which is read when training starts"
    assert told in aopsd("train run.yaml --check policy.model_name=x.gguf")[1]
    code, out, err = aopsd("train run.yaml --check aopsd.judge.threshold=1 +policy.megatron_cfg.enabled=true")
    assert code == 0 and "warning: aopsd.judge.threshold has no effect: " in err
    assert out.splitlines()[-1].startswith("ok, with 2 warnings: settings, problems. ")
    assert "warning: not read by aopsd.engine=local: policy.megatron_cfg." in err


def test_the_first_attempts_and_what_asks_for_them_are_told_before_they_begin(aopsd):
    """One attempt at each of 8 problems; a method brings its curriculum over the config's."""
    shuffle = "aopsd.curriculum.name=shuffle"
    Path("run.yaml").write_text(CONFIG.replace("{num_initial_attempts: 1}", "{num_initial_attempts: 1, name: shuffle}"))
    assert "attempt" not in aopsd("train run.yaml --check")[1]
    told = "8 attempts (1 at each of 8 problems), each judged, before step 1, for aopsd.curriculum.name={}; none with "
    told += shuffle
    other = "aopsd.curriculum.name=competence_reversed"
    for line, why in (
        ("--method normalised", "competence of --method normalised"),
        (f"--method normalised {other}", "competence_reversed"),
    ):
        assert told.format(why) in aopsd(f"train run.yaml {line} --check")[1]
    assert shuffle not in aopsd(f"train run.yaml --method normalised {shuffle} --check")[1]
    first, second, *_ = aopsd(f"train run.yaml {other}")[1].splitlines()
    assert first.startswith("run: aopsd + ") and first.endswith(", seed 0; checks, then loads tables")
    assert second == told.format("competence_reversed")
    assert "attempts (" not in aopsd(f"train run.yaml {other} --resume run")[1]  # they are made


def test_a_log_has_no_bars_of_the_libraries():
    """transformers has no switch for the bar over a GGUF file's tensors, which is tqdm's own."""
    bar = "from tqdm.auto import tqdm; list(tqdm(range(2)))"
    env = {key: value for key, value in os.environ.items() if key != "TQDM_DISABLE"}
    ours = "from nemo_aopsd.cli import main\ntry: main()\nexcept SystemExit: pass"
    for start, has_bar in (("pass", True), (ours, False)):
        command = [sys.executable, "-c", f"{start}\n{bar}", "--help"]
        done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, check=True)
        assert ("2/2" in done.stderr, bool(done.stderr)) == (has_bar, has_bar)


def test_a_run_from_training_to_report(aopsd, tmp_path):
    assert aopsd("train run.yaml")[0] == 0
    run = tmp_path / "run"
    assert {"config.yaml", "metrics.jsonl", "eval/epoch_001.json"} <= set(listing(run))

    code, out, _ = aopsd("evaluate run --samples 4")  # on its own held-out problems
    folder = run / "eval" / "held_out_step_000002_x4"
    assert code == 0 and len((folder / "held_out.jsonl").read_text().splitlines()) == 16
    assert out.startswith("| benchmark | pass@1 | pass@4 | solved | truncated |\n")
    assert re.search(
        r"^\| held_out \| \d+\.\d % \[.*\] \| .* \| \d of 4 \| .*\nthe run's own .*\nstep_000002 ", out, re.MULTILINE
    )
    assert {"results.json", "results.md", "results.svg"} <= set(listing(folder))
    assert aopsd("report run")[:2] == (0, "run/report.html\n")  # on stderr it says that it draws, if that takes long
    assert (run / "report.html").stat().st_size > 1000

    code, out, _ = aopsd("paired-test run run/eval/epoch_000.json")
    assert code == 0 and out.startswith("first run/eval/epoch_001.json, second run/eval/epoch_000.json\n")
    assert "one seed each" in out.splitlines()[-1]
    code, out, err = aopsd("paired-test run run/eval/epoch_001.json")
    assert code == 2 and not out and "run/eval/epoch_001.json: is the same evaluation as FIRST" in err
    code, _, err = aopsd("train run.yaml")
    assert code == 2 and "run already holds a run. Go on with `aopsd train --resume run`" in err
    assert aopsd("train run.yaml --resume run aopsd.max_num_epochs=2")[0] == 0
    assert "max_num_epochs: 2" in (run / "config.yaml").read_text()
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 4
    code, _, err = aopsd("train run.yaml --resume run aopsd.seed=1 aopsd.max_num_epochs=2")
    assert (
        code == 2 and "aopsd.seed: 0 -> 1" in err and "Go on with its own ones, `aopsd train --resume run`, or" in err
    )


def test_one_problem_is_shown_and_its_graph_drawn(aopsd, tmp_path):
    code, out, _ = aopsd("preview run.yaml --problem p3 aopsd.probes.threshold=0.5")
    assert code == 0 and "What is 3 + 1?" in out and "What is 4 + 1?" not in out
    assert aopsd("dag show problems.jsonl --problem p3 --out p3.svg") == (0, "p3.svg\n", "")
    write_rows("slash.jsonl", row(1, id="set/1"))
    assert aopsd("dag show slash.jsonl --problem set/1") == (0, "runs/dags/slash.set_1.svg\n", "")
    assert aopsd("dag browse slash.jsonl") == (0, "runs/dags/slash.html: 1 graph\n", "")
    assert "<svg" in (tmp_path / "p3.svg").read_text()


def test_dag_show_draws_what_is_faulty_and_passes_over_what_cannot_be_read(aopsd, tmp_path):
    circle = row(1, dag=raw_graph("ab", ["ab", "ba"]))
    write_rows("mixed.jsonl", b"{", row(0, answer=""), circle, b'{"id": "p2", "dag', row(3))
    code, out, err = aopsd("dag show mixed.jsonl --problem p1 --out p1.svg")
    fault, note = err.splitlines()
    assert (code, out) == (0, "p1.svg\n")
    assert " ".join(fault.split()) == "error mixed.jsonl:3 p1 cycle a -> b -> a"
    assert note.startswith("warning 2 rows cannot be read: mixed.jsonl:1: broken JSON")
    assert note.endswith("List all: aopsd dag check mixed.jsonl")
    assert "marker-start" in (tmp_path / "p1.svg").read_text()
    result = aopsd("dag show mixed.jsonl --problem p9 --out x.svg")
    assert_one_message(result, r"mixed\.jsonl: no problem with id 'p9' among its 3\..* 2 rows cannot be read: mixed")
    code, out, err = aopsd("dag browse mixed.jsonl --out page.html")
    assert (code, out, err) == (0, "page.html: 3 graphs\n", f"{note}\n")


def test_a_graph_that_is_none_cannot_be_drawn(aopsd, tmp_path):
    write_rows("none.jsonl", row(0, dag={"nodes": [{"id": 1}], "edges": []}), row(1, dag={"nodes": [], "edges": []}))
    result = aopsd("dag show none.jsonl --problem p0 --out x.svg")
    assert_one_message(result, r"none\.jsonl:1 \(id 'p0'\): its `dag` cannot be drawn: malformed \(node 0: ")
    result = aopsd("dag show none.jsonl --problem p1 --out x.svg")
    assert_one_message(result, r"none\.jsonl:2 \(id 'p1'\): its `dag` cannot be drawn: empty_graph \(no checkpoint\)")
    assert not (tmp_path / "x.svg").exists()


def test_an_answer_that_leaks_by_value_stops_check_and_training(aopsd, tmp_path):
    graph = raw_graph({"a": "The share equals 0.5"})
    write_rows("problems.jsonl", row(0), *[row(number, answer=r"\frac{1}{2}", dag=graph) for number in (1, 2)])
    code, out, _ = aopsd("dag check problems.jsonl")
    assert code == 2 and out.startswith(
        "error   problems.jsonl:2  p1  states_answer    node 'a': The share equals 0.5\n"
        "error   problems.jsonl:3  p2  states_answer    node 'a': The share equals 0.5\n"
        "states_answer: the teacher would be told the answer. Take the final answer's value out of the node's "
    )
    row_of = r"problems\.jsonl:{}: problem 'p{}': .*states_answer \(node 'a': The share equals 0\.5\).*\n".format
    pattern = rf"{row_of(2, 1)}{row_of(3, 2)}Take .*aopsd dag check problems\.jsonl"
    assert_one_message(aopsd("train run.yaml --check"), pattern)
    assert aopsd("train run.yaml --check aopsd.context.kind=none")[0] == 0  # no graph is shown


def test_dag_check_lists_faults_and_counts_them(aopsd):
    assert aopsd("dag check problems.jsonl") == (0, "8 rows: 8 usable, 0 not; 0 errors, 0 warnings\n", "")
    repeated, circle = raw_graph("ab", ["ab", "ab"]), raw_graph("ab", ["ab", "ba"])
    boxed = [row(4, solution="\\boxed{4}"), row(5, solution="\\boxed{4} plus 2 is \\boxed{6}")]
    write_rows("bad.jsonl", row(0), row(1, dag=repeated), row(2, dag=circle), b"{", *boxed)
    code, out, _ = aopsd("dag check bad.jsonl")
    lines = out.splitlines()
    assert code == 2 and [line.split()[:4] for line in lines[:4]] == [
        ["warning", "bad.jsonl:2", "p1", "duplicate_edge"],
        ["error", "bad.jsonl:3", "p2", "cycle"],
        ["error", "bad.jsonl:4", "-", "broken_line"],
        ["warning", "bad.jsonl:5", "p4", "other_box"],
    ]
    assert lines[4:] == ["6 rows: 4 usable, 2 not; 2 errors, 2 warnings"]
    write_rows("mixed.jsonl", row(0), {"id": "p1", "problem": "?", "answer": "1"}, {"id": "p2", "problem": "?"})
    code, out, _ = aopsd("dag check mixed.jsonl")
    told = "3 rows: 1 usable, 1 only by methods that need no graph, 1 not; 3 errors, 0 warnings"
    assert (code, out.splitlines()[-1]) == (2, told)


def test_dag_check_sums_up_edges_that_a_longer_path_implies(aopsd):
    """A file of GSM8K has hundreds, which would hide what matters."""
    implied, repeated = raw_graph("abc", ["ab", "bc", "ac"]), raw_graph("abc", ["ab", "ab"])
    write_rows("implied.jsonl", row(0, dag=implied), row(1, dag=implied), row(2, dag=repeated))
    code, out, _ = aopsd("dag check implied.jsonl")
    first, told, total = out.splitlines()
    assert code == 0 and first.split()[:4] == ["warning", "implied.jsonl:3", "p2", "duplicate_edge"]
    assert told.startswith("2 transitive_edge warnings, harmless") and "--verbose" in told
    assert total == "3 rows: 3 usable, 0 not; 0 errors, 3 warnings"
    code, out, _ = aopsd("dag check implied.jsonl --verbose")
    assert [line.split()[1] for line in out.splitlines()[:-1]] == [f"implied.jsonl:{line}" for line in (1, 2, 3)]


@pytest.fixture
def ctrl_c_in_step_2(monkeypatch):
    from nemo_aopsd.run import trainer

    step, calls = trainer.train_step, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(trainer, "train_step", interrupted)


def test_ctrl_c_says_how_to_go_on_and_that_works(aopsd, ctrl_c_in_step_2, tmp_path):
    code, _, err = aopsd("train run.yaml aopsd.seed=3 'logger.log_dir=my run'")
    assert code == 130 and err.endswith("interrupted. To go on: aopsd train --resume 'my run'\n")
    assert aopsd("train --resume 'my run'")[0] == 0
    assert len((tmp_path / "my run/metrics.jsonl").read_text().splitlines()) == 2
    assert "# resumed: aopsd train --resume 'my run'\n" in (tmp_path / "my run/config.yaml").read_text()


def test_a_class_that_fails_while_training_says_how_to_go_on(aopsd, tmp_path, monkeypatch):
    """Without a step the class may be mended; after one the run has used it."""
    monkeypatch.setenv("FAILS_AT", "1")
    (tmp_path / "mine.py").write_text(
        "import os\nclass Mine:\n    continues, calls = False, 0\n    def __init__(self, aopsd): pass\n"
        "    def weigh(self, gaps, probes):\n        self.calls += len(gaps) == 4\n"
        "        assert self.calls < int(os.environ['FAILS_AT']), 'half'\n"
        "        return [1 + 0 * gap for gap in gaps]\n"
    )
    code, _, err = aopsd("train run.yaml aopsd.weighting=mine.py:Mine")
    assert code == 2 and err.endswith("AssertionError: half\nTo go on: aopsd train --resume run\n")
    monkeypatch.setenv("FAILS_AT", "3")
    code, _, err = aopsd("train --resume run")
    told = "This run has used aopsd.weighting: a changed class needs a new one, in another logger.log_dir. To go on: "
    assert code == 2 and err.endswith(f"{told}aopsd train --resume run\n")


def test_a_run_goes_on_by_its_own_config_wherever_its_folder_is(aopsd, ctrl_c_in_step_2, tmp_path):
    assert aopsd("train run.yaml aopsd.seed=3")[0] == 130
    os.rename("run", "moved")
    code, _, err = aopsd("train --resume moved aopsd.seed=4")
    assert code == 2 and "aopsd.seed: 3 -> 4" in err
    assert aopsd("train --resume moved aopsd.max_num_epochs=2")[0] == 0
    assert len((tmp_path / "moved/metrics.jsonl").read_text().splitlines()) == 4 and not Path("run").exists()
    assert aopsd("train")[2].startswith("error: CONFIG is missing. Name a YAML file, or demo; or go on with a run")


def test_checkpoints_outside_a_run_are_found_from_anywhere_and_their_loss_undoes_nothing(aopsd, tmp_path, monkeypatch):
    run = tmp_path / "run"
    data = f"data.train.data_path={tmp_path}/problems.jsonl aopsd.evaluation.data_path={tmp_path}/held_out.jsonl"
    first = f"train run.yaml {data} logger.log_dir={run} checkpointing.checkpoint_dir=kept"
    first += " aopsd.max_num_epochs=9 aopsd.max_num_steps=1"
    with lock(Path("kept")):  # of another run that writes there
        code, _, err = aopsd(first)
        assert code == 2 and "kept: process" in err and "another checkpointing.checkpoint_dir" in err
    assert aopsd(first)[0] == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "goes on at step 2" in aopsd(f"train --resume {run} aopsd.max_num_steps=2")[1]
    os.rename(tmp_path / "kept", tmp_path / "moved")
    longer = f"train --resume {run} aopsd.max_num_steps=3"
    code, _, err = aopsd(longer)
    assert code == 2 and re.search(r"kept: has no checkpoint \(looked from .*checkpointing\.checkpoint_dir=FOLDER", err)
    assert "goes on at step 3" in aopsd(f"{longer} checkpointing.checkpoint_dir=../moved")[1]
    state = max((tmp_path / "moved").glob("*/state.json"))
    state.write_text(json.dumps(json.loads(state.read_text()) | {"train_seconds": 1e9}))  # another run's
    os.rename(tmp_path / "moved", tmp_path / "other")
    code, _, err = aopsd(f"{longer} checkpointing.checkpoint_dir=../other")
    assert code == 2 and "checkpoint_dir: '../moved' -> '../other'" in err


def test_a_resume_goes_on_in_its_folder_and_nowhere_else(aopsd):
    assert aopsd("train run.yaml aopsd.max_num_steps=1")[0] == 0
    code, _, err = aopsd("train --resume run logger.log_dir=other aopsd.max_num_steps=2")
    assert code == 2 and "--resume run: goes on in that folder; got logger.log_dir=other" in err
    code, _, err = aopsd("train --resume run checkpointing.checkpoint_dir=other aopsd.max_num_steps=2")
    assert code == 2 and "checkpoint_dir: 'checkpoints' -> '../other'" in err
    assert aopsd("train --resume run logger.log_dir=./run aopsd.max_num_steps=2")[0] == 0


def test_a_refused_resume_tells_where_what_it_lacks_can_be_found(aopsd, tmp_path, monkeypatch):
    shutil.copytree(Path(prompts.__file__).parent / "tiny", "own")
    shutil.copy(REPO / "examples/my_parts.py", ".")
    parts = "aopsd.prompts=own aopsd.weighting=my_parts.py:RisingWeights"
    assert aopsd(f"train run.yaml {parts} aopsd.max_num_steps=1")[0] == 0
    longer = "train --resume run aopsd.max_num_steps=2 --check"
    for file in (Path("own/student.txt"), Path("my_parts.py")):
        file.write_text(file.read_text() + "\n")
    code, _, err = aopsd(longer)
    kept = "aopsd.prompts=run/extensions/prompts aopsd.weighting=run/extensions/my_parts.py:RisingWeights"
    assert code == 2 and f"{tmp_path}/my_parts.py: has changed since the run began" in err
    assert err.endswith(f"To go on with that: aopsd train --resume run {kept}\n")
    assert aopsd(f"{longer} {kept}")[0] == 0
    monkeypatch.chdir("run")
    code, _, err = aopsd(f"train --resume {tmp_path}/run aopsd.max_num_steps=2")
    assert code == 2 and err.endswith(f"in another folder. To go on: cd {tmp_path} && aopsd train --resume run\n")


def test_a_run_goes_on_with_its_problems_from_another_place_and_with_no_others(aopsd, tmp_path):
    assert aopsd("train run.yaml aopsd.max_num_steps=1")[0] == 0
    for name in ("problems", "held_out"):
        os.rename(f"{name}.jsonl", f"{name}_moved.jsonl")
    moved = "data.train.data_path=problems_moved.jsonl aopsd.evaluation.data_path="
    assert aopsd(f"train --resume run aopsd.max_num_steps=2 {moved}held_out_moved.jsonl")[0] == 0
    code, _, err = aopsd(f"train --resume run aopsd.max_num_steps=3 {moved}problems_moved.jsonl")
    assert code == 2 and "settings:\n  aopsd.evaluation.data_path: 'held_out_moved.jsonl' -> 'problems_moved" in err


def test_sigterm_says_the_same_and_leaves_the_signal_as_it_was(aopsd, monkeypatch):
    """`timeout` and Slurm send it."""
    from nemo_aopsd.run import trainer

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(trainer, "train_step", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    code, _, err = aopsd("train run.yaml")
    assert code == 143 and err.endswith("\nended by SIGTERM. To go on: aopsd train --resume run\n")
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("while_loading", ["nemo_aopsd.cli.app", "nemo_aopsd.run.trainer"])
def test_ctrl_c_while_libraries_load_is_one_line(aopsd, monkeypatch, capsys, while_loading):
    """At the start of any command, and of what a command imports itself."""

    class Interrupted:
        @staticmethod
        def find_spec(name, *_):
            if name == while_loading:
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, while_loading, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["aopsd", "train", "run.yaml"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130 and capsys.readouterr().err == "\ninterrupted.\n"


def test_a_check_in_a_folder_that_holds_a_run_checks_the_rest(aopsd):
    Path("run").mkdir()
    Path("run/config.yaml").write_text("# aopsd train run.yaml")
    code, _, err = aopsd("train run.yaml --check data.train.data_path=nowhere.jsonl")
    assert code == 2 and "run already holds a run." in err and "nowhere.jsonl: no such file" in err


@pytest.mark.parametrize(
    ("settings", "why"), [("save_period=2", "save_period=2"), ("enabled=false", "enabled=false"), ("save_period=1", "")]
)
def test_ctrl_c_and_resume_say_which_steps_come_again(aopsd, ctrl_c_in_step_2, settings, why):
    line = f"train run.yaml checkpointing.{settings}"
    code, _, err = aopsd(line)
    told = f"1 step has no checkpoint (checkpointing.{why}) and will be made again. " if why else ""
    assert code == 130 and f"interrupted. {told}To go on: aopsd train --resume run\n" in err
    _, out, _ = aopsd(f"{line} --resume run")
    assert ("redoes 1 step that no checkpoint holds" in out) == bool(why)


# What cannot work: one message that names file, line and remedy


def assert_one_message(result, pattern):
    code, _, err = result
    assert code == 2, err
    assert err.startswith("error: ") and "Traceback" not in err
    assert re.search(pattern, err), err


@pytest.mark.parametrize(
    ("rows", "pattern"),
    [
        ([row(0), b"{broken"], r"problems\.jsonl:2: broken JSON"),
        ([row(0), row(1, dag=None)], r"problems\.jsonl:2: problem 'p1' has no `dag`"),
    ],
)
def test_bad_problems(aopsd, tmp_path, rows, pattern):
    write_rows("problems.jsonl", *rows)
    for flag in ("", "--check"):
        assert_one_message(aopsd(f"train run.yaml {flag}"), pattern)
    assert not (tmp_path / "run").exists()


def test_an_empty_solution_where_the_context_needs_one(aopsd):
    write_rows("problems.jsonl", row(0, solution="s"), row(1, solution="   "))
    result = aopsd("train run.yaml --check aopsd.context.kind=solution aopsd.curriculum.name=shuffle")
    assert_one_message(result, r"problems\.jsonl:2: problem 'p1' has no `solution`.*aopsd\.context\.kind=solution")


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("train nowhere.yaml", r"nowhere\.yaml: no such config file .*Check the path"),
        ("train x/nowhere.yaml", r"x/nowhere\.yaml: no such config file .*Check the path"),
        ("train dmeo", r"dmeo: no such config file .*Did you mean `demo`\?"),
        ("train run.yml", r"run\.yml: no such config file .*Did you mean `run\.yaml`\? Check"),
        ("train x/../run.yml", r"run\.yml: no such config file .*Did you mean `x/\.\./run\.yaml`\? Check"),
        ("train run.yaml --method GRPO", r"no method `GRPO` .*Did you mean `grpo`\?"),
        ("train demo.yaml", r"demo\.yaml: no such config file .*Did you mean `demo`\?"),
        ("train suite", r"suite: is a folder"),
        ("compare embeded", r"embeded: no such config file .*Did you mean `embedded`\?"),
        ("compare gsm8k_sweep", r"gsm8k_sweep: no such config file .* embedded, embedded_walltime"),
        ("train run.yaml aopsd.sede=1", r"unknown key `aopsd\.sede`\. Did you mean `aopsd\.seed`"),
        ("train run.yaml data.train.data_path=nowhere.jsonl", r"nowhere\.jsonl: no such file .*Check the path"),
        ("train run.yaml aopsd.evaluation.data_path=nowhere.jsonl", r"nowhere\.jsonl: no such file"),
        ("train run.yaml aopsd.prompts=klingon", r"no such prompt.*`aopsd\.prompts` must be default or tiny, or a f"),
        ("train run.yaml aopsd.prompts=tinny", r"no such prompt.* Did you mean `tiny`\?"),
        ("train run.yaml logger.log_dir=run.yaml/x", r"run\.yaml: not a folder that can be written"),
        ("train run.yaml --resume nowhere", r"nowhere: no such run folder \(looked from /"),
        ("train --resume run.yaml", r"run\.yaml: is a file\. Name the folder that training wrote"),
        ("train run.yaml logger.log_dir=suite", r"suite: holds a suite of `aopsd compare`\. Choose another folder"),
        (
            "preview run.yaml --problem p33",
            r"problems\.jsonl: no problem with id 'p33' among its 8\. Did you mean `p3`",
        ),
        ("preview run.yaml --problem p7x", r"no problem with id 'p7x' among its 8\. Did you mean `p7`"),
        ("preview run.yaml --problem zebra", r"no problem with id 'zebra' among its 8\. The first one is `p0`"),
        ("evaluate nowhere --data held_out.jsonl --samples 2", r"nowhere: no such file or folder .looked from"),
        ("report nowhere", r"nowhere: no such run folder \(looked from /"),
        ("dag check nowhere.jsonl", r"nowhere\.jsonl: no such file"),
        (
            "dag check plain.jsonl",
            r"plain\.jsonl: no row has a `dag`, none of 1; .* id, problem, answer.* dag build plain",
        ),
        ("train run.yaml data.train.data_path=plain.jsonl", r"'p0' has no `dag`.* 1 of 1 .* dag build .*--method opsd"),
        ("dag show plain.jsonl --problem p0 --out x.svg", r"plain\.jsonl:1: problem 'p0' has no `dag` to draw"),
        ("demo aopsd.evaluation.data_path=null", r"the demo compares before and after"),
    ],
)
def test_bad_arguments(aopsd, tmp_path, line, pattern):
    write_rows("plain.jsonl", {"id": "p0", "problem": "?", "answer": "1"})
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite/suite.json").write_text("{}")
    (tmp_path / "x").mkdir()
    assert_one_message(aopsd(line), pattern)


def test_a_run_without_a_checkpoint_or_an_evaluation_cannot_be_measured(aopsd):
    assert aopsd("train run.yaml checkpointing.enabled=false aopsd.evaluation.data_path=null")[0] == 0
    assert_one_message(aopsd("paired-test run run"), r"^error: run: .*aopsd\.evaluation\.data_path")
    result = aopsd("evaluate run --data held_out.jsonl --samples 2")
    assert_one_message(result, r"run: no checkpoint yet\. Train with checkpointing\.enabled=true")
    assert aopsd("train run.yaml aopsd.max_num_steps=0 logger.log_dir=base")[0] == 0
    result = aopsd("evaluate base --data held_out.jsonl")
    assert_one_message(result, r"base: no checkpoint yet\. The run takes no step: name its model, ")


def test_a_full_disk_names_the_file_and_leaves_nothing_half_written(aopsd, tmp_path, monkeypatch):
    from nemo_aopsd import files

    real, budget = files.os.fsync, [12]

    def full(descriptor):
        budget[0] -= 1
        if budget[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    assert_one_message(aopsd("train run.yaml"), r"error: run/\S+: No space left on device\. Free some space.*--resume")
    assert not [name for name in listing(tmp_path) if name.endswith(".partial")]
    monkeypatch.setattr(files.os, "fsync", real)
    assert aopsd("train run.yaml --resume run")[0] == 0


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("grade responses.jsonl --out grades.jsonl", "grades.jsonl"),
        ("dag browse problems.jsonl --out page.html", "page.html"),
        ("dag stats problems.jsonl --out rows.jsonl", "rows.jsonl"),
        ("evaluate run --data held_out.jsonl --samples 2 --out out", "out/manifest.jsonl"),
        ("demo --out run aopsd.max_num_steps=1", "run/config.yaml"),
    ],
)
def test_on_a_full_disk_each_command_names_its_file_and_is_to_be_started_again(aopsd, monkeypatch, command, file):
    from nemo_aopsd import files

    Path("responses.jsonl").write_text('{"id": "1", "answer": "7", "output": "\\\\boxed{7}"}\n')
    if command.startswith("evaluate"):
        assert aopsd("train run.yaml")[0] == 0

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    result = aopsd(command)
    assert_one_message(result, rf"^error: \S*{file}: No space left on device\. Free some space.*start the same command")
    assert "--resume" not in result[2]


def test_a_file_that_cannot_be_opened_is_named_and_a_bug_keeps_its_traceback(aopsd, monkeypatch):
    def denied(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    def unreached(path):
        raise OSError("no answer from the hub")

    monkeypatch.setattr(dag_files, "read_lines", denied)
    result = aopsd("dag show problems.jsonl --problem p1 --out x.svg")
    assert_one_message(result, r"^error: problems\.jsonl: Permission denied\. Check the path\.$")
    monkeypatch.setattr(dag_files, "read_lines", unreached)
    result = aopsd("dag show problems.jsonl --problem p1 --out x.svg")
    assert_one_message(result, r"^error: no answer from the hub$")
    monkeypatch.setattr(dag_files, "read_lines", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        aopsd("dag show problems.jsonl --problem p1 --out x.svg")


def test_the_cluster_engine_is_not_here_yet(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(CONFIG)
    monkeypatch.setattr(sys, "argv", ["aopsd", "train", "run.yaml", "--check", "aopsd.engine=nemo_rl"])
    with pytest.raises(SystemExit) as stop:
        cli.run()
    assert stop.value.code == 2 and "aopsd.engine=nemo_rl" in capsys.readouterr().err


# The demo


def summary(epoch, correct, samples=4):
    return {
        "epoch": epoch,
        "num_problems": len(correct),
        "num_samples": samples,
        "pass_at_k": {"1": sum(correct) / len(correct) / samples},
        "correct_per_problem": {f"p{index}": count for index, count in enumerate(correct)},
    }


@pytest.fixture
def demo(aopsd, monkeypatch):
    """Run the demo with training and report replaced; returns (exit code, last line)."""

    def run(before, after, line="demo"):
        def fake_train(config, problems, held_out, *, resume, typed):
            folder = train._run(config)
            (folder / "eval").mkdir(parents=True)
            (folder / "config.yaml").write_text(settings_text(config))
            for epoch, correct in ((0, before), (3, after)):
                (folder / f"eval/epoch_{epoch:03d}.json").write_text(json.dumps(summary(epoch, correct)))
            (folder / "eval/epoch_009.settings.json").write_text("{}")

        monkeypatch.setattr(train, "_train", fake_train)
        monkeypatch.setattr("nemo_aopsd.analysis.report.write_report", lambda run: run / "report.html")
        code, out, err = aopsd(line)
        return code, (out or err).splitlines()[-1]

    return run


@pytest.mark.parametrize(
    ("before", "after", "code", "said"),
    [
        ([1, 2] * 200, [3] * 400, 0, "ok: pass@1 0.375 -> 0.750 (n=400)"),
        ([1, 2] * 10, [2, 1] * 10, 1, "ran, no gain shown: pass@1 0.375 -> 0.375 (n=20)"),
        ([1, 2] * 10, [0, 1] * 10, 1, "ran, no gain shown: pass@1 0.375 -> 0.125 (n=20)"),
    ],
)
def test_the_demo_ends_with_what_it_showed(demo, before, after, code, said):
    assert demo(before, after) == (code, f"demo {said}, seed 0, report runs/demo/report.html")


def test_training_ends_with_what_it_showed(demo):
    told = "seed 0: pass@1 0.{} -> {} (n=20), {}. Next: aopsd report here".format
    none = "no interval of the change: it is +1.000 for each problem"
    interval = "95 % interval of the change [-0.100, +0.100]"
    for before, after, rates in (
        ([0] * 20, [4] * 20, ("000", "1.000", none)),
        ([1, 2] * 10, [2, 1] * 10, ("375", "0.375", interval)),
    ):
        shutil.rmtree("here", ignore_errors=True)
        assert demo(before, after, "train demo logger.log_dir=here") == (0, f"done, {told(*rates)}")


def test_the_demo_moves_its_earlier_run_aside_and_nothing_else(demo, tmp_path):
    assert demo([0] * 20, [4] * 20, "demo --out here aopsd.seed=1") == (
        0,
        "demo ok: pass@1 0.000 -> 1.000 (n=20), seed 1, report here/report.html",
    )
    (tmp_path / "here/notes.md").write_text("mine")
    assert demo([0] * 20, [2] * 20, "demo --out here")[0] == 0
    assert (tmp_path / "here/notes.md").read_text() == "mine"
    assert json.loads((tmp_path / "here.1/eval/epoch_003.json").read_text())["pass_at_k"] == {"1": 1.0}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/state.json").write_text("mine")
    code, line = demo([0] * 20, [2] * 20, "demo --out other")
    assert code == 2 and "other: holds a checkpoint" in line
