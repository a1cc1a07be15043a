"""Parts of the user's own are called once on invented input: their faults shall cost no initial attempts."""

import inspect
import json
from collections.abc import Callable, Sequence

from nemo_aopsd.config.extension import blamed, is_own, own_class
from nemo_aopsd.config.schema import AOPSDConfig
from nemo_aopsd.data.problems import Problem
from nemo_aopsd.method.context import checked_messages
from nemo_aopsd.method.curriculum import checked_batches
from nemo_aopsd.method.probes import Probe
from nemo_aopsd.method.weighting import checked_weights


def rehearse(aopsd: AOPSDConfig, problems: Sequence[Problem]) -> None:
    """Call weighting, context and curriculum if they are own ones, on objects that training does not use.

    Raises UserError for what the step would refuse, or what the part itself raises. Judge and objective are not called.
    """
    parts: dict[str, tuple[str, Callable[[], None]]] = {
        "weighting": (aopsd.weighting, lambda: _weigh(aopsd)),
        "context.kind": (aopsd.shown_context, lambda: _show(aopsd, problems[0])),
        "curriculum.name": (aopsd.curriculum.name, lambda: _order(aopsd, [problem.id for problem in problems])),
    }
    for key, (name, call) in parts.items():
        if is_own(name):
            file = inspect.getfile(own_class(key, name))
            with blamed(f"aopsd.{key}={name}: a call on invented input failed", file):
                call()


def _weigh(aopsd: AOPSDConfig) -> None:
    """A row with probes, of which one has no suffix, and a row without any."""
    import torch

    part = own_class("weighting", aopsd.weighting)(aopsd)
    high = aopsd.probes.threshold + 1.0
    rows = [torch.tensor([0.1, high, -0.2, -high, 0.0]), torch.tensor([0.0, -0.1, 0.2])]
    probes = [Probe(1, high, 1, [2, 3], 0.7, 1.0), Probe(3, -high, 1, [], None, 1.0)] if part.continues else []
    checked_weights(aopsd.weighting, part, rows, [probes, []])


def _show(aopsd: AOPSDConfig, problem: Problem) -> None:
    """Before any checkpoint is reached, and when all are."""
    part = own_class("context.kind", aopsd.shown_context)()
    all_reached = frozenset(problem.dag.nodes) if part.adaptive and problem.dag is not None else frozenset[str]()
    for reached in {frozenset[str](), all_reached}:
        checked_messages(aopsd.shown_context, part, problem, reached, aopsd.prompts)


def _order(aopsd: AOPSDConfig, ids: list[str]) -> None:
    """One epoch, as the trainer has it, and the state of a checkpoint."""
    kind = own_class("curriculum.name", aopsd.curriculum.name)
    order = kind(ids, aopsd.curriculum, aopsd.num_prompts_per_step, aopsd.seed)
    if order.needs_progress:
        order.initialize({each: [0.5] for each in ids})
    order.record()
    for batch in checked_batches(order):
        for each in batch if order.needs_progress else ():
            order.observe(each, 0.5)
    order.end_epoch()
    state = json.loads(json.dumps(order.state_dict()))
    kind(ids, aopsd.curriculum, aopsd.num_prompts_per_step, aopsd.seed).load_state_dict(state)
