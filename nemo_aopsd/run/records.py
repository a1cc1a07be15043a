"""What a run folder keeps of a rollout: enough to redo every figure without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nemo_aopsd.engine import Tokenizer
from nemo_aopsd.method.context import disclosed_share
from nemo_aopsd.method.rollout import Draft, Scored
from nemo_aopsd.thoughts import whole_text

if TYPE_CHECKING:
    from torch import Tensor


def rollout_record(draft: Draft, scored: Scored | None, tokenizer: Tokenizer, context: str) -> dict[str, Any]:
    """The rollout as a JSON object; log-probs rounded to 6 digits, null for one that was left out (`scored` None)."""
    verdict, reached = draft.verdict, draft.reached
    return {
        "problem_id": draft.problem.id,
        "student_prompt": draft.student_prompt,
        "teacher_prompt": draft.teacher_prompt,
        "response": draft.output.tokens,
        "finished": draft.output.finished,
        "response_text": whole_text(draft.student_prompt, draft.output.tokens, tokenizer),
        "pieces": tokenizer.pieces(draft.output.tokens),
        "judged": sorted(verdict.judged) if verdict else None,
        "judge_failed": verdict.failed if verdict else None,
        "judge_cut": verdict.cut if verdict else None,
        "judge_text": verdict.text if verdict else None,
        "reached": sorted(reached) if reached is not None else None,
        "progress": draft.progress,
        "disclosed_share": disclosed_share(draft.problem, context, reached or frozenset()),
        "dropped": scored is None,
        "student_logprobs": _rounded(scored and scored.student_logprobs),
        "teacher_logprobs": _rounded(scored and scored.teacher_logprobs),
        "weights": _rounded(scored and scored.weights),
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
            for probe in (scored.probes if scored else [])
        ],
    }


def _rounded(values: Tensor | None) -> list[float] | None:
    return None if values is None else values.double().round(decimals=6).tolist()
