"""What a final answer is worth, by itself and among the answers to its problem."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from statistics import mean, stdev

from nemo_aopsd.engine import Tokenizer
from nemo_aopsd.grading import grade
from nemo_aopsd.method.rollout import Draft
from nemo_aopsd.thoughts import whole_text


def with_rewards(drafts: Sequence[Draft], tokenizer: Tokenizer) -> list[Draft]:
    """The drafts with their rewards, and their advantages among the answers to one prompt, those included that the
    teacher will have no room for. No advantages if a prompt has one answer: an own class may do without them."""
    drafts = [rewarded(draft, tokenizer) for draft in drafts]
    rewards = [draft.reward for draft in drafts if draft.reward is not None]
    prompts = [tuple(draft.student_prompt) for draft in drafts]
    if 1 in Counter(prompts).values():
        return drafts
    advantages = group_advantages(prompts, rewards)
    return [replace(draft, advantage=advantage) for draft, advantage in zip(drafts, advantages, strict=True)]


def rewarded(draft: Draft, tokenizer: Tokenizer) -> Draft:
    """With reward 1 for a finished answer that is right, else 0; `undecided` where the grader could not tell."""
    if not draft.output.finished:
        return replace(draft, reward=0.0)
    graded = grade(whole_text(draft.student_prompt, draft.output.tokens, tokenizer), draft.problem.answer)
    return replace(draft, reward=float(graded.correct), undecided=graded.reason == "ungradable")


def group_advantages(groups: Sequence[Hashable], rewards: Sequence[float]) -> list[float]:
    """GRPO's (R - mean R) / (std R + 1e-6) of each reward within its group, which must have two."""
    members: dict[Hashable, list[float]] = {}
    for group, reward in zip(groups, rewards, strict=True):
        members.setdefault(group, []).append(reward)
    pairs = ((reward, members[group]) for group, reward in zip(groups, rewards, strict=True))
    return [(reward - mean(group)) / (stdev(group) + 1e-6) for reward, group in pairs]
