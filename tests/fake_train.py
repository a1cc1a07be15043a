"""Stands for `aopsd train` in tests of suites: writes the files of a run, quickly, and resumes as training does.

`python -c CHILD train CONFIG KEY=VALUE... [--resume RUN]`. The files depend on nothing but config and seed. A config
with `env.fails` ends with that message at its second step; each step takes `env.seconds`.
"""

import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from nemo_aopsd.config.load import load_config, to_yaml
from nemo_aopsd.run.access import lock

REPO = Path(__file__).parents[1]
CHILD = f"import sys; sys.path.insert(0, {str(REPO)!r}); from tests.fake_train import main; main()"
STEPS = 4


class Forked:
    """As much of `subprocess.Popen` as a suite needs, for `python -c CODE ...`: a fork, which imports nothing anew."""

    def __init__(self, command, stdin=None, stdout=None, stderr=None, env=None):
        read_end, self._write_end = os.pipe()
        self.returncode, self.pid = None, os.fork()
        if self.pid == 0:
            os.close(self._write_end)
            os.dup2(read_end, 0)
            if stdout:
                os.dup2(stdout.fileno(), 1)
                sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
            os._exit(_run(command[2], command[3:], env or os.environ))
        os.close(read_end)

    def poll(self, options=os.WNOHANG):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def communicate(self, timeout=None):
        os.close(self._write_end)
        return self.poll(0)

    def send_signal(self, number):
        os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


def _run(code, arguments, env):
    sys.argv = ["-c", *arguments]
    own = dict(env)
    os.environ.clear()
    os.environ.update(own)
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit as stop:
        return stop.code or 0
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        return 1
    return 0


def main():
    def end_with_the_parent():
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    _, command, path, *overrides = sys.argv
    assert command == "train"
    config = load_config(path, [word for word in overrides if "=" in word])
    run = Path(config.logger["log_dir"])
    assert (run / "config.yaml").exists() == ("--resume" in overrides)
    with lock(run):
        (run / "config.yaml").write_text(to_yaml(config))
        (run / "environment.json").write_text(json.dumps(dict(os.environ)))
        train(config, run)


def train(config, run):
    seed, env = config.aopsd.seed, config.raw.get("env", {})
    evaluate(run, 0, 0.4, seed)
    metrics = run / "metrics.jsonl"
    metrics.touch()
    total = STEPS if config.aopsd.max_num_steps is None else config.aopsd.max_num_steps
    for step in range(len(metrics.read_text().splitlines()) + 1, total + 1):
        time.sleep(env.get("seconds", 0))
        if step == 2 and env.get("fails"):
            raise RuntimeError(env["fails"])
        line = {"epoch": 0, "step": step, "rollout/count": 8, "rollout/mean_tokens": 10 + step, "time/step": 0.5}
        with metrics.open("a") as file:
            file.write(json.dumps(line | env.get("metrics", {})) + "\n")
    if total:
        evaluate(run, 1, env.get("skill", 0.6), seed)


def evaluate(run, epoch, skill, seed):
    stem = run / "eval" / f"epoch_{epoch:03d}"
    if stem.with_suffix(".json").exists():
        return
    stem.parent.mkdir(exist_ok=True)
    draw = random.Random(f"{epoch} {skill} {seed}")
    counts = {f"p{index}": sum(draw.random() < skill for _ in range(4)) for index in range(30)}
    with (run / "evaluated.txt").open("a") as file:
        file.write(f"{epoch}\n")
    stem.with_suffix(".settings.json").write_text("{}")
    stem.with_suffix(".jsonl").write_text("{}\n")
    stem.with_suffix(".json").write_text(json.dumps({"num_samples": 4, "correct_per_problem": counts}))
