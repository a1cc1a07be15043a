"""What a run folder keeps of a rollout: enough to redo every figure without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nemo_aopsd.engine import Tokenizer
from nemo_aopsd.method.context import disclosed_share
from nemo_aopsd.method.step import Rollout

if TYPE_CHECKING:
    from torch import Tensor


def rollout_record(rollout: Rollout, tokenizer: Tokenizer, context: str) -> dict[str, Any]:
    """The rollout as a JSON object; log-probs rounded to 6 digits, null for a dropped rollout."""
    verdict, reached = rollout.verdict, rollout.reached
    return {
        "problem_id": rollout.problem.id,
        "student_prompt": rollout.student_prompt,
        "teacher_prompt": rollout.teacher_prompt,
        "response": rollout.output.tokens,
        "finished": rollout.output.finished,
        "response_text": tokenizer.decode(rollout.output.tokens),
        "pieces": tokenizer.pieces(rollout.output.tokens),
        "judged": sorted(verdict.judged) if verdict else None,
        "judge_failed": verdict.failed if verdict else None,
        "judge_cut": verdict.cut if verdict else None,
        "judge_text": verdict.text if verdict else None,
        "reached": sorted(reached) if reached is not None else None,
        "progress": rollout.progress,
        "disclosed_share": disclosed_share(rollout.problem, context, reached or frozenset()),
        "dropped": rollout.dropped,
        "student_logprobs": _rounded(rollout.student_logprobs),
        "teacher_logprobs": _rounded(rollout.teacher_logprobs),
        "weights": _rounded(rollout.weights),
        "probes": [
            {
                "position": probe.position,
                "gap": probe.gap,
                "anchor": probe.anchor,
                "anchor_text": tokenizer.pieces([probe.anchor])[0],
                "suffix": probe.suffix,
                "suffix_text": "".join(tokenizer.pieces(probe.suffix)),
                "nll": probe.nll,
                "weight": probe.weight,
            }
            for probe in rollout.probes
        ],
    }


def _rounded(values: Tensor | None) -> list[float] | None:
    return None if values is None else [round(value, 6) for value in values.tolist()]
