"""The grading process: from a thread, an event loop, a daemon, a fork; killed, crashed, blocked, and gone at exit."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from benchmarks.grading import HOSTILE, fuzz
from nemo_aopsd import grading
from nemo_aopsd.grading import Grade, grade, grade_async
from nemo_aopsd.grading.process import GradingCrash, GradingPool, GradingProcess, GradingTimeout

SLOW = "\\boxed{" + "\\int x " * 40 + "}"  # its parser takes minutes
HALF = Grade(True, "correct")


@pytest.fixture(autouse=True)
def no_cache():
    grading._compare_short.cache_clear()


@pytest.fixture
def pool():
    pool = GradingPool()
    yield pool
    pool.close()


def sum_of(n):
    return f"\\boxed{{x+{n}}}", f"{n}+x"


def test_from_threads_each_gets_the_verdict_on_its_own_answer():
    with ThreadPoolExecutor(3) as threads:
        jobs = [threads.submit(grade, sum_of(n)[0], sum_of(n if n % 3 else n + 1)[1]) for n in range(1, 40)]
    assert [job.result().correct for job in jobs] == [n % 3 > 0 for n in range(1, 40)]


def test_a_hostile_answer_blocks_neither_threads_nor_the_event_loop(monkeypatch):
    pool = GradingPool()
    monkeypatch.setattr(grading, "POOL", pool)
    monkeypatch.setattr(pool, "ask", partial(pool.ask, seconds=300))  # no kill timer: the test kills

    async def main():
        slow = asyncio.create_task(grade_async(SLOW, "\\sqrt{7}"))
        quick = [await grade_async(*sum_of(n)) for n in range(100, 110)]
        was_done = slow.done()
        for child in pool._all:
            os.kill(child._child.pid, 9)
        return quick, was_done, await slow

    quick, was_done, slow = asyncio.run(main())
    pool.close()
    assert quick == [HALF] * 10 and not was_done
    assert slow.reason == "ungradable" and "ended" in slow.cause


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_has_one_verdict(name, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(grading.POOL, "ask", partial(grading.POOL.ask, seconds=0.5))
        given = grade(HOSTILE[name], "\\sqrt{7}")
    assert not given.correct and (given.reason == "ungradable") == bool(given.cause)
    assert grade(*sum_of(3)) == HALF  # and the grader lives


def test_after_a_timeout_the_process_is_dead_and_the_next_one_answers(pool):
    assert pool.ask("same", "x+1", "1+x", 60) is True
    (first,) = pool._all
    with pytest.raises(GradingTimeout, match="no verdict within"):
        pool.ask("same", SLOW[7:-1], "x", 0.3)
    assert not first.is_alive()
    assert pool.ask("same", "x+1", "1+x", 60) is True
    assert first not in pool._all and len(pool._all) == 1


@pytest.mark.parametrize("moment", ["idle", "asked"])
def test_a_process_that_dies_is_ungradable_once_and_replaced(pool, moment):
    child = GradingProcess()
    assert child.ask({"operation": "same", "predicted": "x+1", "gold": "1+x"}, 60) is True
    os.kill(child._child.pid, 9)
    if moment == "idle":
        child._child.wait()
    with pytest.raises(GradingCrash, match="ended"):
        child.ask({"operation": "same", "predicted": "x", "gold": "y"}, 5)
    assert not child.is_alive()
    pool._idle, pool._all = [child], {child}
    assert pool.ask("same", "x+2", "2+x", 60) is True


def test_an_exception_in_the_process_is_ungradable_and_named():
    given = grade("\\boxed{3}", "()")
    assert given == Grade(False, "ungradable") and given.cause.startswith(
        "ValueError: math-verify cannot read the gold"
    )


def test_a_daemonic_process_without_main_guard_and_a_fork_grade_too(tmp_path):
    """Each would fail with `multiprocessing`: daemons have no children, spawn runs the script again."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing, os, sys
            from nemo_aopsd.grading import POOL, grade
            assert grade("\\\\boxed{x+1}", "1+x").correct
            inherited = [child._child.pid for child in POOL._all]
            def work(queue):
                graded = grade("\\\\boxed{x+2}", "2+x").correct
                queue.put((graded, [child._child.pid for child in POOL._all]))
            context = multiprocessing.get_context("fork")
            queue = context.Queue()
            process = context.Process(target=work, args=(queue,), daemon=True)
            process.start()
            graded, own = queue.get(timeout=60)
            process.join()
            assert graded and not set(own) & set(inherited)
            assert grade("\\\\boxed{x+3}", "3+x").correct  # the child's exit did not take the parent's process along
            print(*inherited, *own)
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for pid in done.stdout.split():
        assert_gone(int(pid))


def test_the_process_ends_with_an_owner_that_is_killed():
    code = (
        "import os; from nemo_aopsd.grading import POOL, grade; grade('\\\\boxed{x+1}', '1+x'); "
        "print(*[c._child.pid for c in POOL._all], flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert_gone(int(done.stdout))


def assert_gone(pid):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":  # waits for init, which adopted it
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} outlives its owner")


def test_closing_reaps_every_child():
    pool = GradingPool()
    barrier = threading.Barrier(2)

    def work(n):
        barrier.wait()
        return pool.ask("same", f"x+{n}", f"{n}+x", 60)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, (1, 2))) == [True, True]
    pids = [child._child.pid for child in pool._all]
    assert len(pids) == 2
    pool.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_every_output_of_a_fuzz_run_has_one_verdict():
    reasons = fuzz(500, seed=7)
    assert reasons.total() == 500
    assert reasons["wrong"] and reasons["correct"] and reasons["no_answer"]
