"""A plan on a terminal, or as JSON."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nemo_aopsd.cluster.doctor.fit import KEEP_ALL
from nemo_aopsd.cluster.doctor.memory import SAMPLE, TRAIN, total
from nemo_aopsd.cluster.doctor.model import ModelSize
from nemo_aopsd.cluster.doctor.result import OK, gigabytes, parameters
from nemo_aopsd.cluster.doctor.show import memory_table
from nemo_aopsd.cluster.plan import LocalPlan, Plan
from nemo_aopsd.cluster.plan.workload import Workload
from nemo_aopsd.console import counted


def as_json(plan: Plan) -> dict[str, Any]:
    """Seconds, bytes, tokens."""
    layout, epoch = plan.setup.layout, plan.epoch_seconds
    return {
        "gpu": plan.setup.gpu.name,
        "gpus": layout.gpus,
        "layout": {key: getattr(layout, key) for key in ("nodes", "tp", "pp", "cp", "ep", "sampler_tp")},
        "step_seconds": plan.step_seconds,
        "epoch_seconds": epoch,
        "epoch_gpu_hours": plan.gpu_hours(sum(epoch.values())),
        "run_steps": plan.run_steps,
        "run_seconds": plan.run_seconds,
        "initial_attempts_seconds": plan.first_seconds,
        "measured_errors": plan.errors,
        "unmeasured": plan.unmeasured,
        "unrecomputed": plan.unrecomputed and asdict(plan.unrecomputed),
        "notes": plan.notes,
        **_work_and_memory(plan, plan.setup.size),
    }


def local_as_json(plan: LocalPlan) -> dict[str, Any]:
    """Bytes, tokens; no seconds."""
    return {"gpu": plan.gpu and plan.gpu.name, **_work_and_memory(plan, plan.size)}


def _work_and_memory(plan: Plan | LocalPlan, size: ModelSize) -> dict[str, Any]:
    place = "gpu" if any(item.place == "gpu" for item in plan.memory) else "host"
    return {
        "parameters": size.total,
        "steps_per_epoch": plan.work.steps,
        "memory_bytes": {turn: total(plan.memory, place, turn) for turn in (TRAIN, SAMPLE)},
        "memory_checks": [asdict(check) for check in plan.checks],
        "workload": asdict(plan.work) | {"missing": plan.work.missing and str(plan.work.missing)},
    }


def show_local(plan: LocalPlan, console: Console) -> None:
    """Work and memory, and how to time a step here."""
    where = plan.gpu.name if plan.gpu else "one machine, without a GPU"
    console.print(f"{parameters(plan.size.total)} parameters, {where}\n{_work(plan.work)}\n")
    console.print(memory_table(plan.memory))
    for check in plan.checks:
        verdict = "fits" if check.severity == OK else "may not fit"
        texts = f"{check.found}, expected {check.expected}: {verdict}. {check.remedy}"
        console.print(f"\n[bold]{check.severity}[/] {escape(texts.strip())}")
    if attempts := plan.work.problems * plan.work.initial_attempts:
        console.print(f"\n{attempts:,} attempts, each judged, before step 1; the timing below leaves them out")
    console.print(
        "\nno seconds: they depend on this machine. Time two steps: aopsd train CONFIG aopsd.max_num_steps=2 "
        f"{'aopsd.curriculum.name=shuffle ' if attempts else ''}aopsd.evaluation.data_path=null "
        "checkpointing.enabled=false logger.log_dir=runs/timed",
        soft_wrap=True,
    )
    console.print("note: lengths of questions and of what the teacher reads are assumed (docs/scaling.md).")
    if plan.work.missing:
        console.print(f"note: no file {escape(str(plan.work.missing))}: {plan.work.problems} problems are assumed.")


def _work(work: Workload) -> str:
    return (
        f"{counted(work.problems, 'problem')}, {counted(work.steps, 'step')} an epoch, {counted(work.rows, 'rollout')} "
        f"a step: question {work.question:.0f} tokens (assumed), response {work.response:.0f} "
        f"(longest {work.longest:.0f}), teacher's prompt {work.teacher_prompt:.0f} (assumed), "
        f"{work.probes:.0f} probes a step"
    )


def show(plan: Plan, console: Console) -> None:
    layout, work, size = plan.setup.layout, plan.work, plan.setup.size
    console.print(
        f"{parameters(size.total)} parameters on {layout.gpus} x {plan.setup.gpu.name}; TP {layout.tp}, "
        f"PP {layout.pp}, CP {layout.cp}, EP {layout.ep}, vLLM TP {layout.sampler_tp}\n{_work(work)}\n"
    )
    if plan.unmeasured:
        console.print(f"[bold red]no seconds[/]: never measured with {escape(', '.join(plan.unmeasured))}")
    else:
        console.print(_stages(plan))
        minutes, hours = plan.run_seconds / 60, plan.gpu_hours(plan.run_seconds)
        steps = counted(plan.run_steps, "step")
        console.print(f"\nthe whole run, {steps}: {minutes:,.0f} min, {hours:,.2f} GPU-hours")
    sums = ", ".join(f"{turn} {gigabytes(total(plan.memory, 'gpu', turn))}" for turn in (TRAIN, SAMPLE))
    console.print(f"\nmemory of one GPU: {sums}, one row's cache counted")
    for check in plan.checks:
        if check.severity != OK:
            texts = f"{check.name}: {check.found}, expected {check.expected}. {check.remedy}."
            console.print(f"[bold]{check.severity}[/] {escape(texts)}")
    if found := plan.unrecomputed:
        room, seconds = gigabytes(plan.setup.gpu.memory), plan.step_seconds["update"]
        console.print(
            f"{KEEP_ALL} would fit, by estimate: {gigabytes(found.memory)} of {room} a GPU, and the update is "
            f"predicted to take {found.update_seconds:.2f} s and not {seconds:.2f} s"
        )
    for note in plan.notes:
        console.print(f"note: {escape(note)}.")


def _stages(plan: Plan) -> Table:
    table = Table("stage", box=None, pad_edge=False)
    for head in ("s a step", "share", "s an epoch", "its GPU-hours", "error where measured"):
        table.add_column(head, justify="right")
    epoch, errors, whole = plan.epoch_seconds, plan.errors, sum(plan.step_seconds.values())
    for stage, seconds in (*plan.step_seconds.items(), ("total", whole)):
        an_epoch = epoch.get(stage, sum(epoch.values()))
        error = "{:+.0%} to {:+.0%}".format(*errors[stage]) if stage in errors else "-"
        hours = f"{plan.gpu_hours(an_epoch):.2f}"
        table.add_row(stage, f"{seconds:.2f}", f"{seconds / whole:.0%}", f"{an_epoch:.0f}", hours, error)
    if plan.first_seconds:
        hours = f"{plan.gpu_hours(plan.first_seconds):.2f}"
        table.add_row("initial attempts", "", "", f"{plan.first_seconds:.0f}", hours, "-")
    return table
