"""One call of `aopsd compare`: check the suite, train the missing runs, write the table."""

import os
import shlex
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console

from nemo_aopsd.analysis.suite.folder import Run, blame, check_unchanged, load_configs, remember, write_configs
from nemo_aopsd.analysis.suite.processes import Failure, Pool
from nemo_aopsd.analysis.suite.results import Row, measure, rows_of
from nemo_aopsd.analysis.suite.spec import Suite, check_alike
from nemo_aopsd.analysis.suite.table import csv_text, markdown, suite_figure, summary
from nemo_aopsd.config.keys import flatten, typed
from nemo_aopsd.config.label import describe_run
from nemo_aopsd.config.load import file_layers
from nemo_aopsd.config.schema import AOPSDConfig, Config
from nemo_aopsd.console import counted, show_page
from nemo_aopsd.data.problems import Problem, fingerprint
from nemo_aopsd.errors import UserError, nearest
from nemo_aopsd.files import atomic_write, keep_inputs
from nemo_aopsd.run.access import held
from nemo_aopsd.run.folder import SUITE
from nemo_aopsd.run.preflight import check_inputs

_PAGE = "results.md"
_RESULTS = ("shared.yaml", SUITE, _PAGE, "results.csv", "results.svg")


@dataclass(frozen=True)
class Comparison:
    """The members of a suite with seeds 0 to `seeds` - 1, in the folder `out`; `only` names members or runs.

    The table compares with the member `against`, or else with the suite's own reference.
    """

    suite: Suite
    out: Path
    seeds: int
    only: Sequence[str]
    jobs: int
    console: Console
    check_engine: Callable[[Config], None]
    against: str | None = None

    def __post_init__(self) -> None:
        names = [member.name for member in self.suite.members]
        if self.against is not None and self.against not in names:
            near = nearest(self.against, names)
            raise UserError(f"--against {self.against}: no such member. The suite has {', '.join(names)}.{near}")

    @cached_property
    def runs(self) -> list[Run]:
        return [Run(member.name, seed, self.out) for seed in range(self.seeds) for member in self.suite.members]

    @cached_property
    def chosen(self) -> list[Run]:
        """The runs that `only` names, or all. Raises UserError on a name that is none."""
        for name in self.only:
            if not any(name in (run.member, run.label) for run in self.runs):
                known = [*(run.label for run in self.runs), *(member.name for member in self.suite.members)]
                hint = nearest(name, known) or f" The first is {self.runs[0].label}."
                raise UserError(f"--only {name}: no such member or run.{hint}")
        return [run for run in self.runs if not self.only or run.member in self.only or run.label in self.only]

    def keep_inputs(self) -> None:
        """Raise UserError if a file that the suite is made of would be written over."""
        members, suite = self.suite.members, self.suite
        written = [self.out / name for name in _RESULTS] + [Run(each.name, 0, self.out).config_file for each in members]
        own = [(f"the config of member `{member.name}`", member.file) for member in members]
        keep_inputs(written, [("SUITE", suite.path), ("SUITE's config", suite.config), *own])

    def show(self) -> None:
        """A line a chosen member on what would run. Refuses what `train` would refuse; writes nothing."""
        configs, problems = self._check()
        self._say([*check_unchanged(self.out, configs, problems), *self._warnings(configs)])
        for name in dict.fromkeys(run.member for run in self.chosen):
            own = [run for run in self.chosen if run.member == name]
            finished = sum(run.is_finished for run in own)
            begun = sum(run.is_begun and not run.is_finished for run in own)
            counts = f"{len(own) - begun - finished} to run, {begun} to go on, {finished} finished"
            self._say([f"{name} ({describe_run(configs[name].aopsd)}): {counts}"])
        todo, threads = sum(not run.is_finished for run in self.chosen), counted(_threads(self.jobs), "thread")
        self._say([f"{counted(todo, 'run')}, {self.jobs} at a time, {threads} each, into {self.out}"])

    def train(self) -> list[Failure]:
        """Write the members' configs, and run what is not finished."""
        configs, problems = self._check()
        with held(self.out / ".prepare", wait=True):  # elements of a job array begin together
            self._say([*check_unchanged(self.out, configs, problems), *self._warnings(configs)])
            write_configs(self.suite, self.out)
            remember(self.out, configs, problems)
        bases = {name for name, config in configs.items() if config.aopsd.max_num_steps == 0}
        base_of = {run.seed: run for run in self.runs if run.member in bases}
        todo = [run for run in self.chosen if not run.is_finished]
        todo.sort(key=lambda run: run.member not in bases)
        pool = Pool(self.jobs, _threads(self.jobs), lambda run: base_of.get(run.seed), lambda line: self._say([line]))
        return pool.work(todo)

    def report(self, failures: Sequence[Failure]) -> Path:
        """Show the table, and write it and the figure; returns the page."""
        out, reference, rows = self.out, self._reference, self._rows(self.runs)
        if rows:
            atomic_write(out / "results.svg", suite_figure(rows, reference))
            atomic_write(out / "results.csv", csv_text(rows, reference))
            show_page(summary(rows, reference), self.console)
        page = out / _PAGE
        atomic_write(page, markdown(self.suite.path.stem, self._command, rows, reference, failures))
        return page

    def show_chosen(self) -> None:
        """The table of what `only` names and of the reference, as far as it is finished. Writes nothing.

        Elements of a job array run side by side, so none of them makes the page.
        """
        compared = [run for run in self.runs if run in self.chosen or run.member == self._reference]
        if rows := self._rows(compared):
            show_page(summary(rows, self._reference), self.console)
        done = f"{sum(run.is_finished for run in self.chosen)} of {counted(len(self.chosen), 'run')} finished"
        self._say([f"{done}. The page of all members, {self.out / _PAGE}: {self._command}"])

    @property
    def _command(self) -> str:
        """Makes the page of all members."""
        words = ["aopsd", "compare", str(self.suite.path), "--seeds", str(self.seeds), "--out", str(self.out)]
        return shlex.join(words + (["--against", self.against] if self.against else []))

    @property
    def _reference(self) -> str | None:
        return self.against or self.suite.reference

    def _rows(self, runs: Sequence[Run]) -> list[Row]:
        """A row a member of those of `runs` that are finished."""
        finished = {
            member.name: [measure(run) for run in runs if run.member == member.name and run.is_finished]
            for member in self.suite.members
        }
        return rows_of(finished, self._reference, self.suite.labels)

    def _check(self) -> tuple[dict[str, Config], dict[str, str]]:
        """Config by member and fingerprint by file of problems, once all that needs no model is known to be right."""
        with tempfile.TemporaryDirectory() as scratch:  # what is refused must not be left behind
            write_configs(self.suite, Path(scratch))
            configs = load_configs(self.suite, Path(scratch))
        check_alike(configs)
        files: dict[str, list[Problem]] = {}
        for name, config in configs.items():
            try:
                self.check_engine(config)
                problems, held_out = check_inputs(config)
            except UserError as error:
                raise blame(self.suite, name, Path(scratch), error) from error
            files[config.data["train"]["data_path"]] = problems
            files[str(config.aopsd.evaluation.data_path)] = held_out or []  # which `check_alike` has asked for
        return configs, {file: fingerprint(rows) for file, rows in files.items()}

    def _warnings(self, configs: dict[str, Config]) -> list[str]:
        chosen = {run.member: configs[run.member].aopsd for run in self.chosen}
        trained = {name: aopsd for name, aopsd in chosen.items() if aopsd.max_num_steps != 0}
        return [*self._overruled(trained), *self._unequal(trained)]

    def _overruled(self, trained: Collection[str]) -> list[str]:
        """A warning for each of these members whose method says otherwise than the suite's `settings`."""
        told, wanted = [], flatten(self.suite.settings)
        for member in (member for member in self.suite.members if member.name in trained):
            layers, own = file_layers(member.file), flatten(member.settings)
            method = {key: value for layer in layers for key, value in flatten(layer.tree).items() if key not in own}
            lost = [key for key in wanted if key in method and method[key] != wanted[key]]
            if lost:
                says = ", ".join(f"{key}={typed(method[key])}" for key in lost)
                remedy = "To have the suite's, set it in the member's own"
                told.append(
                    f"warning: {member.name} has {says}: its method goes over the suite's `settings`. {remedy}."
                )
        return told

    def _unequal(self, trained: dict[str, AOPSDConfig]) -> list[str]:
        """A warning where one of these members has many more answers a step than another and nothing evens it."""
        if all(aopsd.max_response_tokens or aopsd.max_train_seconds for aopsd in trained.values()):
            return []
        sizes = [(aopsd.rollouts_per_step, name) for name, aopsd in trained.items()]
        (least, few), (most, many) = min(sizes), max(sizes)
        if most < 2 * least:
            return []
        found = f"a step of {many} has {most} answers, one of {few} {least}: the difference may be theirs"
        remedy = "Make num_prompts_per_step x num_generations_per_prompt equal, or set aopsd.max_response_tokens"
        return [f"warning: {found}. {remedy}."]

    def _say(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _threads(jobs: int) -> int:
    """Of one process: what the user has set, or an even share of the cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, cores // jobs)
