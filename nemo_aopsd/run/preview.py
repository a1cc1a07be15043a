"""One problem through stages 1 to 5 of the step, on a terminal: what each side reads and what is made of it.

Colours only repeat what marks and tables say, so that the output reads the same without them (NO_COLOR, a pipe).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nemo_aopsd.config.schema import AOPSDConfig, Config, ObjectiveConfig, ProbeConfig
from nemo_aopsd.console import seed_words, slow
from nemo_aopsd.data.dag import frontier
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.engine import Engine, Tokenizer
from nemo_aopsd.grading import grade
from nemo_aopsd.method.context import disclosed_share, donors_for
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.method.probes import Probe, surprises
from nemo_aopsd.method.rollout import Draft, Scored
from nemo_aopsd.method.step import collect
from nemo_aopsd.method.weighting import UNSURPRISED, over_threshold
from nemo_aopsd.types import Tokens

if TYPE_CHECKING:
    from torch import Tensor

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def show(problem: Problem, problems: list[Problem], engine: Engine, config: Config, console: Console) -> None:
    """Print one rollout of `problem` and all that the update would see. `problems` provide the other problem's text.

    The gap of sampled tokens is shown whatever the objective.
    """
    changes = {"num_generations_per_prompt": 1, "objective": ObjectiveConfig()}
    config = replace(config, aopsd=replace(config.aopsd, **changes))
    aopsd = config.aopsd
    donors = donors_for(problems, aopsd.shown_context, aopsd.seed)
    objective = build_objective(aopsd.objective)
    with slow(f"one rollout of {problem.id}, its verdict and its probes"):
        found = collect([problem], engine, objective, config, donors=donors, seed=aopsd.seed)
    [(draft, scored)] = found.pairs()

    tokenizer, probes = engine.tokenizer, aopsd.probes
    _heading(console, f"Problem {problem.id}, answer {problem.answer}")
    _plain(console, f"{problem.where}. Context {aopsd.context.kind}, weighting {aopsd.weighting}.")
    _plain(console, f"{seed_words(aopsd.seed).capitalize()}.")
    _show_prompt(console, "1. The student reads", draft.student_prompt, tokenizer)
    _show_response(console, draft, scored, tokenizer, probes)
    _show_progress(console, draft, aopsd.context.kind)
    _show_prompt(console, "4. The teacher reads", draft.teacher_prompt or [], tokenizer)
    if scored is None:
        _heading(console, "5. Gaps and probes")
        _plain(console, "None: the teacher's prompt and the response do not fit together, so this rollout is dropped.")
    else:
        _show_gaps(console, scored, tokenizer, aopsd)
    _heading(console, "Seconds")
    _plain(console, "   ".join(f"{stage} {value:.1f}" for stage, value in found.seconds.items()))


def _show_prompt(console: Console, title: str, prompt: Tokens, tokenizer: Tokenizer) -> None:
    _heading(console, f"{title} ({len(prompt)} tokens)")
    _plain(console, "".join(tokenizer.pieces(prompt)))


def _show_response(
    console: Console, draft: Draft, scored: Scored | None, tokenizer: Tokenizer, config: ProbeConfig
) -> None:
    tokens = draft.output.tokens
    end = "finished" if draft.output.finished else "cut off at the length limit"
    _heading(console, f"2. The student answers ({len(tokens)} tokens, {end})")
    pieces = tokenizer.pieces(tokens)
    if not tokens:
        _plain(console, "(an empty response)")
    elif scored is None:
        _plain(console, "".join(pieces))
    else:
        console.print(gap_text(pieces, over_threshold(_gaps(scored), config).tolist()), highlight=False)
        _plain(console, f"\n«token #row»: |gap| at least {config.threshold:g} nats, listed under 5.")
    _plain(console, str(grade(tokenizer.decode(tokens), draft.problem.answer)))


def gap_text(pieces: list[str], is_over: list[bool]) -> Text:
    """The response; tokens with |gap| over the threshold stand in guillemets with their row of the table."""
    text, row = Text(), 0
    for piece, over in zip(map(_visible, pieces), is_over, strict=True):
        if over:
            row += 1
            text.append(f"«{piece} #{row}»", "bold")
        else:
            text.append(piece)
    return text


def _gaps(scored: Scored) -> Tensor:
    assert scored.gap is not None  # the policy gradient, which the preview always uses, reads both sides
    return scored.gap


def _show_progress(console: Console, draft: Draft, context: str) -> None:
    _heading(console, "3. How far it got")
    verdict, reached = draft.verdict, draft.reached
    if verdict is None or reached is None:
        _plain(console, f"Not judged: neither context {context} nor the curriculum uses progress.")
        return
    if verdict.failed:
        _plain(console, f"The judge's verdict cannot be read, so nothing counts as reached. It said: {verdict.text!r}")
    else:
        judged, closed = (", ".join(sorted(ids)) or "none" for ids in (verdict.judged, reached))
        _plain(console, f"The judge names: {judged}.")
        _plain(console, f"Reached, with all prerequisites: {closed} (progress {draft.progress:.2f}).")
    graph = draft.problem.graph
    disclosed = disclosed_share(draft.problem, context, reached)
    if disclosed is not None:
        _plain(console, f"Disclosed to the teacher: {disclosed:.0%} of {len(graph)} checkpoints.")
    ahead = frontier(graph, reached)
    table = _table("id", "state", "checkpoint")
    for node, data in graph.nodes(data=True):
        state = "reached" if node in reached else "next" if node in ahead else "later"
        style = {"reached": "blue", "next": "dark_orange", "later": "dim"}[state]
        table.add_row(Text(node), Text(state, style), Text(_visible(data["statement"])))
    console.print(table)


def _show_gaps(console: Console, scored: Scored, tokenizer: Tokenizer, aopsd: AOPSDConfig) -> None:
    probed, config = aopsd.continues, aopsd.probes
    gaps, tokens = _gaps(scored).tolist(), scored.draft.output.tokens
    triggered = over_threshold(_gaps(scored), config).nonzero().flatten().tolist()
    _heading(console, "5. Gaps and probes")
    mean = f"{sum(map(abs, gaps)) / len(gaps):.3f} nats" if gaps else "not defined"
    _plain(console, f"Mean |gap| {mean}; {len(triggered)} of {len(gaps)} tokens with |gap| >= {config.threshold:g}.")
    if not triggered:
        return
    probes = {probe.position: probe for probe in scored.probes}
    in_loss = surprises([scored.probes] if scored.draft.in_loss(aopsd) else [])
    betas = UNSURPRISED.after(in_loss).betas(config)  # as the step had them
    columns = ("anchor", "teacher continues", "L", "beta") if probed else ()
    table = _table("#", "at", "token", "gap", *columns, "weight")
    for row, t in enumerate(triggered, start=1):
        cells = [str(row), str(t), _quoted([tokens[t]], tokenizer), f"{gaps[t]:+.2f}"]
        if probed:
            beta = betas.of(gaps[t])
            cells += [*_probe_cells(probes.get(t), tokenizer), "none" if beta is None else f"{beta:.3g}"]
        table.add_row(*map(Text, [*cells, f"{scored.weights[t]:.2f}"]))
    console.print(table)
    if probed:
        others = f"tokens unlisted weigh {config.untriggered_weight:g}."
        _plain(console, f"gap, L, beta in nats; L: mean surprisal of the student at the continuation; {others}")
    else:
        _plain(console, f"Weighting {aopsd.weighting}: no probes.")


def _probe_cells(probe: Probe | None, tokenizer: Tokenizer) -> tuple[str, str, str]:
    """Anchor, what the teacher continues with, and L."""
    if probe is None:
        return "not probed", "", ""
    suffix = _quoted(probe.suffix, tokenizer) if probe.suffix else "(nothing)"
    return _quoted([probe.anchor], tokenizer), suffix, "none" if probe.nll is None else f"{probe.nll:.2f}"


def _quoted(tokens: Tokens, tokenizer: Tokenizer) -> str:
    """Text on one line, with its spaces and line breaks made visible."""
    return _visible("".join(tokenizer.pieces(tokens)).replace(" ", "·").replace("\n", "↵").replace("\t", "⇥"))


def _visible(text: str) -> str:
    """A model may write anything: control characters are spelt out, so that they cannot steer the terminal."""
    return text.translate(_CONTROLS)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        numeric = column in ("#", "at", "gap", "L", "beta", "weight")
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    return table


def _heading(console: Console, title: str) -> None:
    console.print(Text(f"\n== {title}", "bold"), highlight=False)


def _plain(console: Console, text: str) -> None:
    """Text as it is: no markup, no highlighting."""
    console.print(Text(_visible(text)), highlight=False)
