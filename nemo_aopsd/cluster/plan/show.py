"""A plan, a comparison and a fit on a terminal; a plan as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nemo_aopsd.cluster.doctor.memory import SAMPLE, TRAIN, total
from nemo_aopsd.cluster.doctor.result import OK, gigabytes, parameters
from nemo_aopsd.cluster.plan import Plan, paper_overhead
from nemo_aopsd.cluster.plan.compare import Line

if TYPE_CHECKING:
    from nemo_aopsd.cluster.plan.fitting import Fitted


def as_json(plan: Plan) -> dict[str, Any]:
    """Seconds, bytes, tokens; `constants` with their status, `assumed_share` of the seconds that rests on guesses."""
    work, layout = plan.work, plan.setup.layout
    epoch = plan.epoch_seconds
    used = {name for terms in plan.terms.values() for name in terms}
    return {
        "gpu": plan.setup.gpu.kind,
        "gpus": layout.gpus,
        "layout": {key: getattr(layout, key) for key in ("nodes", "tp", "pp", "cp", "ep", "sampler_tp")},
        "parameters": plan.setup.size.total,
        "assumed_data": plan.assumed_data,
        "steps_per_epoch": work.steps,
        "step_seconds": plan.step_seconds,
        "epoch_seconds": epoch,
        "epoch_gpu_hours": plan.gpu_hours(sum(epoch.values())),
        "initial_attempts_seconds": plan.once_seconds,
        "probe_share": plan.probe_share,
        "memory_bytes": {turn: total(plan.memory, "gpu", turn) for turn in (TRAIN, SAMPLE)},
        "memory_checks": [check.as_json() for check in plan.checks],
        "measured_errors": plan.measured_errors,
        "workload": {
            key: getattr(work, key)
            for key in (
                "problems",
                "rows",
                "question",
                "teacher_prompt",
                "response",
                "longest",
                "judge_prompt",
                "probes",
            )
        },
        "assumed_share": plan.shares_by_status().get("assumption", 0.0),
        "constants": {
            name: {key: getattr(constant, key) for key in ("kind", "value", "status", "source")}
            for name, constant in plan.constants.by_name.items()
            if name in used
        },
        "notes": plan.notes,
    }


def show(plan: Plan, console: Console) -> None:
    _headline(plan, console)
    show_assumed_data(plan, console)
    console.print()
    _stages(plan, console)
    _memory(plan, console)
    _assumptions(plan, console)


def _headline(plan: Plan, console: Console) -> None:
    layout, work = plan.setup.layout, plan.work
    sizes = f"TP {layout.tp}, PP {layout.pp}, CP {layout.cp}, EP {layout.ep}, vLLM TP {layout.sampler_tp}"
    sizes = "one device" if plan.setup.is_local else sizes
    console.print(
        f"{parameters(plan.setup.size.total)} parameters on {layout.gpus} x {plan.setup.gpu.name}; {sizes}\n"
        f"{work.problems} problems, {work.steps} step{'' if work.steps == 1 else 's'} an epoch, {work.rows} rollouts "
        f"a step: question {work.question:.0f} tokens, response {work.response:.0f} (longest {work.longest:.0f}), "
        f"teacher's prompt {work.teacher_prompt:.0f}, {work.probes:.0f} probes a step",
        highlight=False,
    )


def show_assumed_data(plan: Plan, console: Console) -> None:
    if plan.assumed_data:
        console.print(f"[bold red]ASSUMPTIONS[/] {escape(plan.assumed_data)}", highlight=False, soft_wrap=True)


def _stages(plan: Plan, console: Console) -> None:
    table = Table("stage", box=None, pad_edge=False)
    for head in ("s a step", "share", "s an epoch", "GPU-hours", "measured error", "most of it"):
        table.add_column(head, justify="left" if head == "most of it" else "right")
    step, epoch = plan.step_seconds, plan.epoch_seconds
    whole = sum(step.values())
    for stage, seconds in step.items():
        table.add_row(
            stage, f"{seconds:.2f}", f"{seconds / whole:.0%}", f"{epoch[stage]:.0f}",
            f"{plan.gpu_hours(epoch[stage]):.2f}", _error(plan, stage), _largest_term(plan, stage),
        )  # fmt: skip
    total_epoch = sum(epoch.values())
    table.add_row(
        "[bold]epoch[/]", f"[bold]{whole:.2f}[/]", "", f"[bold]{total_epoch:.0f}[/]",
        f"[bold]{plan.gpu_hours(total_epoch):.2f}[/]", _error(plan, "total"),
    )  # fmt: skip
    if plan.once:
        hours = plan.gpu_hours(plan.once_seconds)
        table.add_row("initial attempts", "", "", f"{plan.once_seconds:.0f}", f"{hours:.2f}")
    console.print(table)
    if plan.work.probes:
        rate = plan.work.probes / (plan.work.rows * plan.work.response)
        console.print(
            f"probes: {plan.probe_share:.1%} of everything else; by the paper's count of tokens, which leaves out "
            f"latency, re-read prefixes and the judge, {paper_overhead(rate, plan.work.probe_length):.2%} at "
            f"{rate:.2%} triggers",
            highlight=False,
        )


def _error(plan: Plan, stage: str) -> str:
    """How far off the stage was in measured steps, at worst either way; nothing where none was measured."""
    found = plan.measured_errors.get(stage)
    return f"{found[0]:+.0%} to {found[1]:+.0%}" if found else "-"


def _largest_term(plan: Plan, stage: str) -> str:
    terms = plan.terms[stage]
    return max(terms, key=lambda name: terms[name] * plan.constants.by_name[name].theta)


def _memory(plan: Plan, console: Console) -> None:
    place = plan.memory[0].place
    sums = ", ".join(f"{turn} {gigabytes(total(plan.memory, place, turn))}" for turn in (TRAIN, SAMPLE))
    one_row = "" if plan.setup.is_local else ", one row's cache counted"
    console.print(f"\nmemory of one {place}: {sums}{one_row}", highlight=False)
    for check in plan.checks:
        if check.severity != OK:
            console.print(
                f"[bold]{check.severity}[/] {check.name}: {escape(check.found)}, expected {escape(check.expected)}. "
                f"{escape(check.remedy)}."
            )


def _assumptions(plan: Plan, console: Console) -> None:
    """Loud on purpose: a number with two digits looks measured."""
    shares = plan.shares_by_status()
    used = {name for terms in plan.terms.values() for name in terms}
    guessed = sorted(name for name in used if plan.constants.by_name[name].status == "assumption")
    console.print()
    if guessed:
        console.print(
            f"[bold red]ASSUMPTIONS[/] {shares.get('assumption', 0.0):.0%} of these seconds rest on {len(guessed)} of "
            f"{len(used)} constants that no measured run was fitted to: {', '.join(guessed)}. "
            "Fit them: aopsd plan --fit RUN --gpu KIND --out FILE, then --constants FILE."
        )
    if "anchored" in shares:
        console.print(f"[yellow]anchored[/] {shares['anchored']:.0%} rest on single measurements, not on a run.")
    lengths = [name for name, source in plan.work.sources.items() if source.startswith("assumed")]
    if lengths:
        console.print(f"[bold red]ASSUMPTIONS[/] on the work itself: {', '.join(lengths)}. A run's own: --lengths RUN.")
    for note in plan.notes:
        console.print(f"note: {escape(note)}.")


def show_comparison(lines: list[Line], console: Console) -> None:
    """Predicted and measured seconds of a step, by stage."""
    table = Table("stage", box=None, pad_edge=False)
    for head in ("predicted", "measured", "error"):
        table.add_column(head, justify="right")
    for line in lines:
        cells = ["-" if value is None else f"{value:.3f}" for value in (line.predicted, line.measured)]
        table.add_row(line.stage, *cells, "-" if line.error is None else f"{line.error:+.0%}")
    console.print(table)


def show_fit(fitted: list[Fitted], console: Console) -> None:
    table = Table("constant", box=None, pad_edge=False)
    for head in ("before", "after", "known to", "status"):
        table.add_column(head, justify="right")
    for each in fitted:
        table.add_row(
            each.after.name,
            f"{each.before.value:.3g}",
            f"{each.after.value:.3g}",
            f"±{each.uncertainty:.0%}",
            each.after.status,
        )
    console.print(table)
