"""Everything that can be checked before a model is loaded, apart from the engine's own settings."""

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TypeVar

from nemo_aopsd.config.extension import check_own, is_own
from nemo_aopsd.config.keys import beside, where
from nemo_aopsd.config.label import family_label
from nemo_aopsd.config.load import method_settings
from nemo_aopsd.config.schema import AOPSDConfig, Config, JudgeConfig
from nemo_aopsd.config.shipped import find_method
from nemo_aopsd.config.unread import unusual, without_effect
from nemo_aopsd.console import asked_of, counted, slow
from nemo_aopsd.data.check import boxes_another
from nemo_aopsd.data.leaks import LEAK_REMEDY, find_answer_leaks
from nemo_aopsd.data.problems import Problem, load_problems, unread_fields
from nemo_aopsd.errors import UserError, refuse, tell_all
from nemo_aopsd.evaluation.benchmarks import also_in
from nemo_aopsd.files import explain
from nemo_aopsd.method.context import check_problems, field_of, student_messages, teacher_messages
from nemo_aopsd.method.judge import questions
from nemo_aopsd.method.leaks import leak_patterns
from nemo_aopsd.models.tokenizer import tokenizer_at_hand
from nemo_aopsd.run.place import check_place
from nemo_aopsd.run.rehearsal import rehearse
from nemo_aopsd.run.row_lengths import check_texts

T = TypeVar("T")


Inputs = tuple[list[Problem], list[Problem] | None]  # to train on, and held out if there is an evaluation


@dataclass
class Findings:
    """What is known of a run before its model is loaded: why it is `refused` and of what it is `warned`, by check."""

    refused: dict[str, str] = field(default_factory=dict)
    warned: dict[str, list[str]] = field(default_factory=dict)
    inputs: Inputs | None = None  # None if they are refused
    knows_lengths: bool = False  # of prompts, for there is a tokenizer

    @property
    def warnings(self) -> list[str]:
        return [*chain(*self.warned.values())]

    def passed(self) -> Inputs:
        """Raises UserError with all that is refused."""
        if self.refused or self.inputs is None:
            told = dict.fromkeys(self.refused.values())  # two checks may refuse the same, one of them with more
            raise UserError("\n".join(each for each in told if not any(each in more for more in told if more != each)))
        return self.inputs


def look(
    config: Config,
    overrides: Sequence[str],
    check_engine: Callable[[], None],
    check_folder: Callable[[], list[str] | None] | None = None,
    *,
    measures: bool = True,
) -> Findings:
    """All checks of `aopsd train` before its model is loaded, which are those of `aopsd doctor`, too.

    `check_engine` and `check_folder`, by default that of a new run's place, raise UserError. `measures` reads the
    prompts with the tokenizer, if it is here.
    """
    found = Findings()

    def attempt(name: str, check: Callable[[], T]) -> T | None:
        try:
            return check()
        except (UserError, OSError) as error:
            found.refused[name] = explain(error) if isinstance(error, OSError) else str(error)
            return None

    def texts(problems: list[Problem], held_out: list[Problem] | None) -> list[str]:
        tokenizer = tokenizer_at_hand(config)
        found.knows_lengths = tokenizer is not None
        return check_texts(config, problems, held_out, tokenizer) if tokenizer else []

    found.warned["run folder"] = attempt("run folder", check_folder or (lambda: check_place(config))) or []
    attempt("settings", check_engine)
    found.warned["settings"] = without_effect(config, overrides) + unusual(config)
    found.inputs = attempt("problems", lambda: check_inputs(config))
    if inputs := found.inputs:
        with slow("comparing the solutions with the answers"):
            doubtful = [line for part in inputs for line in _other_boxes(part or [])]
        files = dict.fromkeys((config.data["train"]["data_path"], config.aopsd.evaluation.data_path))
        unread = [line for file in files if file for line in _unread(file)]
        found.warned["problems"] = unread + doubtful + trained_on(*inputs, config.aopsd.evaluation.data_path)
        if measures:
            found.warned["prompts"] = attempt("prompts", lambda: texts(*inputs)) or []
    return found


def check_inputs(config: Config) -> Inputs:
    """Problems, and held-out problems if there is an evaluation. Raises UserError on what training would trip over."""
    check_own(config.aopsd)
    with slow("reading and checking the problems"):
        problems, held_out = tell_all(lambda: _training_problems(config), lambda: _held_out(config))
        rehearse(config.aopsd, problems)
        _check_prompts(config.aopsd, problems)
    return problems, held_out


def _read(config: Config, key: str, path: str) -> list[Problem]:
    """The problems of `path`, the value of `key`. Raises UserError."""
    if not os.path.exists(path):
        found = f"{where(config, key)}: {key}={path}: no such file (looked from {os.getcwd()})"
        hint = beside(key, path, where(config, key)) or " Check the path."
        raise UserError(f"{found}. Expected a file with one JSON object a line.{hint}")
    return list(_load(path))


def _held_out(config: Config) -> list[Problem] | None:
    path = config.aopsd.evaluation.data_path
    return _read(config, "aopsd.evaluation.data_path", path) if path else None


def _training_problems(config: Config) -> list[Problem]:
    aopsd = config.aopsd
    problems = _read(config, "data.train.data_path", config.data["train"]["data_path"])
    trains_on = aopsd.objective.name if aopsd.objective.reads_solutions else ""
    check_problems(problems, aopsd.shown_context, aopsd.curriculum.name, trains_on)
    if field_of(aopsd.shown_context) == "dag":
        _check_answer_leaks(config.data["train"]["data_path"])
    return problems


def _of_version(check: Callable[[str], T]) -> Callable[[str], T]:
    """`check` of a file is done once as long as the file stays as it is: the members of a suite share their files."""

    @lru_cache(maxsize=4)
    def once(path: str, version: tuple[int, int]) -> T:
        return check(path)

    def checked(path: str) -> T:
        about = os.stat(path) if os.path.isfile(path) else None
        return once(path, (about.st_mtime_ns, about.st_size)) if about else check(path)

    return checked


_load = _of_version(load_problems)
_unread = _of_version(unread_fields)


@_of_version
def _check_answer_leaks(path: str) -> None:
    """What `dag build` rejects and `dag check` calls an error; the loader does not look."""
    faults = [
        f"{problem.where}: problem {problem.id!r}: its graph would tell the teacher the answer, {problem.answer!r}: "
        f"{leak.kind} ({leak.detail})."
        for problem in _load(path)
        for leak in find_answer_leaks(problem.graph, problem.answer)
    ]
    refuse(faults, "leaks", f"{LEAK_REMEDY}. List all: aopsd dag check {shlex.quote(path)}")


def _check_prompts(aopsd: AOPSDConfig, problems: list[Problem]) -> None:
    """Fill every template once; a missing file or gap raises UserError."""
    first, last = problems[0], problems[-1]
    student_messages(first, aopsd.prompts)
    teacher_messages(first, aopsd.shown_context, aopsd.prompts, donor=last)
    if first.dag is not None and not is_own(aopsd.judge.kind):
        questions(first, "", aopsd)
    leak_patterns(aopsd.prompts)


def _other_boxes(problems: Sequence[Problem]) -> list[str]:
    """A warning if solutions end in another value than the answer: one of the two is wrong."""
    found = [each for each in problems if boxes_another(each.solution, each.answer)]
    if not found:
        return []
    first, file = found[0], found[0].where.rpartition(":")[0]
    listed = f". List all: aopsd dag check {shlex.quote(file)}" if first.dag is not None else ""
    many = f"in {len(found)} of {counted(len(problems), 'problem')}"
    return [
        f"{first.where}: {many} the last box of `solution` is another value than `answer`, such as {first.id!r} "
        f"({first.answer!r}). Correct one of the two, or leave them out{listed}"
    ]


def trained_on(problems: Iterable[Problem], held_out: list[Problem] | None, origin: str | None) -> list[str]:
    """A warning if problems to evaluate on, from `origin`, are among the problems of training."""
    both = also_in(held_out or [], problems)
    if not both:
        return []
    return [
        f"{origin}: {len(both)} of {len(held_out or [])} evaluation problems are also trained on, such as "
        f"{both[0].id!r}: pass@k is not held out. Give other problems, or leave them out of training: "
        "aopsd data prepare --against"
    ]


def first_attempts(aopsd: AOPSDConfig, num_problems: int, method: str | None = None) -> str:
    """What a run samples before its first step, why, and how to do without; empty for one that samples nothing.

    `method` is the one of --method.
    """
    each = aopsd.curriculum.initial_attempts
    if not each or aopsd.max_num_steps == 0:
        return ""
    set_by_method = method_settings(find_method(method)) if method else {}
    brings = set_by_method.get("aopsd.curriculum.name") == aopsd.curriculum.name
    why = f"aopsd.curriculum.name={aopsd.curriculum.name}" + (f" of --method {method}" if brings else "")
    return (
        f"{counted(each * num_problems, 'attempt')} ({each} at each of {counted(num_problems, 'problem')}), each "
        f"judged, before step 1, for {why}; none with aopsd.curriculum.name=shuffle"
    )


def summarize(
    config: Config, found: Findings, *, elsewhere: bool = False, method: str | None = None, steps_done: int = 0
) -> str:
    """What a run of this config would do, for people, and what was not checked; `elsewhere` is a job's machine.

    The warnings of `found` have been told before. Raises UserError with all that it refuses."""
    aopsd, (problems, held_out) = config.aopsd, found.passed()
    size = aopsd.num_prompts_per_step
    answers = counted(min(size, len(problems)) * aopsd.num_generations_per_prompt, "answer")
    steps, few = -(-len(problems) // size), f" (fewer problems than a step's {size})" if len(problems) < size else ""
    evaluation = "none, so no pass@k"
    if held_out:
        told = asked_of(len(held_out), len(also_in(held_out, problems)))
        evaluation = f"{told}, from {aopsd.evaluation.data_path}"
    rows = {
        "model": f"{config.policy['model_name']}, engine {aopsd.engine}",
        "problems": f"{len(problems)} from {config.data['train']['data_path']}",
        "evaluation": evaluation,
        "length": f"{counted(steps, 'step')} of {answers} an epoch{few}, at most {_limits(aopsd)}",
        "method": f"{family_label(aopsd)}: {aopsd.objective.name}, context {aopsd.shown_context}, "
        f"weighting {aopsd.weighting}, curriculum {aopsd.curriculum.name}, teacher {aopsd.teacher.weights}",
        "seed": f"{aopsd.seed}: of the order of problems and of all answers",
        "run folder": config.logger["log_dir"],
    }
    if aopsd.max_num_steps == 0:
        rows["length"] = "no steps: evaluates only"
    elif steps_done:
        rows["length"] += f"; {counted(steps_done, 'step')} done"
    elif told := first_attempts(aopsd, len(problems), method):
        rows["before"] = told
    if aopsd.needs_progress and aopsd.judge.kind == "log_odds" and aopsd.judge.threshold == JudgeConfig.threshold:
        rows["judge"] = (
            f"log_odds at its default threshold {JudgeConfig.threshold:g}, at which some models find no checkpoint "
            "reached or all: fit aopsd.judge.threshold with `aopsd judge eval --calibrate OUT.yaml` (docs/judge.md)"
        )
    checked = ["settings", "problems", *(["lengths of prompts"] if found.knows_lengths else [])]
    left = ["the weights", "memory (`aopsd doctor`)"]
    if not found.knows_lengths:
        name = Path((config.policy.get("tokenizer") or {}).get("name") or config.policy["model_name"])
        is_gguf = name.suffix == ".gguf" and name.is_file()
        why = "in a GGUF file, which is read when training starts" if is_gguf else "not here"
        left.insert(0, f"lengths, for the tokenizer of {name} is {why}")
    if elsewhere:
        checked.append("paths against the mounts")
        left.append("packages, GPUs and environment of the job's machine")
    warned = f", with {counted(len(found.warnings), 'warning')}" if found.warnings else ""
    told = f"ok{warned}: {', '.join(checked)}. Not checked: {'; '.join(left)}"
    return "\n".join(f"{name:<11}{text}" for name, text in rows.items()) + f"\n{told}"


def _limits(aopsd: AOPSDConfig) -> str:
    limits = {
        "epoch": aopsd.max_num_epochs,
        "step": aopsd.max_num_steps,
        "response token": aopsd.max_response_tokens,
        "second": aopsd.max_train_seconds,
    }
    return ", ".join(counted(limit, name) for name, limit in limits.items() if limit is not None)
