"""Branches off responses, many at once behind a shared prefix: greedy continuation and scoring with a tree mask.

A branch token sees the prompt, `response[:position]` and its own branch up to itself. Where the token before the
branch must be asked for its prediction, that token leads the branch: fed anew, it sees what it saw in its place.

Shapes: R rows, N branches of a row (padded), W tokens of a branch (padded), C columns of the prefix, Q tokens of all
branches of a row, one behind the other (padded).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, chain

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemo_aopsd.engines.local.kv import KVBuffer, Prefix
from nemo_aopsd.engines.local.memory import batches
from nemo_aopsd.engines.local.network import Network, log_softmax
from nemo_aopsd.types import Branch, Tokens

MAX_QUERIES = 512  # branch tokens of one row in one forward
MAX_TOKENS = 8192  # branch tokens of all rows in one forward that reads them at once, with padding


@dataclass(frozen=True, slots=True)
class BranchRow:
    """The branches of one response; `row` is its place in the prefix, `index` its place in the caller's list."""

    row: int
    index: int
    prompt: Tokens
    response: Tokens
    branches: list[Branch]

    def column(self, branch: Branch) -> int:
        """Where the branch's first token stands, counted from the start of the prompt."""
        return len(self.prompt) + branch.position

    def lead(self, branch: Branch) -> int:
        """The token before the branch."""
        return self.response[branch.position - 1] if branch.position else self.prompt[-1]


def split(rows: list[BranchRow], extra: int, max_tokens: int | None = None) -> Iterator[list[BranchRow]]:
    """Parts of `rows`, in order of branches, each with at most `MAX_QUERIES` tokens a row.

    A branch has `extra` tokens beside its own. Of more than `max_tokens` together, rows of like length form a part.
    """
    while rows:
        sizes = [_fitting(row.branches, extra) for row in rows]
        heads = [replace(row, branches=row.branches[:size]) for row, size in zip(rows, sizes, strict=True)]
        lengths = [sum(len(branch.tokens) + extra for branch in row.branches) for row in heads]
        for part in batches(range(len(heads)), lengths, len(heads), max_tokens):
            yield [heads[index] for index in part]
        rest = [replace(row, branches=row.branches[size:]) for row, size in zip(rows, sizes, strict=True)]
        rows = [row for row in rest if row.branches]


def _fitting(branches: list[Branch], extra: int) -> int:
    """How many of `branches` have `MAX_QUERIES` tokens together; at least one."""
    ends = accumulate(len(branch.tokens) + extra for branch in branches)
    return max(1, sum(end <= MAX_QUERIES for end in ends))


@torch.inference_mode()
def continue_rows(
    network: Network, prefix: Prefix, rows: list[BranchRow], length: int, end_ids: frozenset[int]
) -> list[list[Branch]]:
    """Extend the branches of each row greedily; all advance together, one forward over [R, N] tokens a step."""
    device = network.device
    leads = _pad([[int(not branch.tokens) for branch in row.branches] for row in rows], device)
    starts = _pad([[row.column(branch) for branch in row.branches] for row in rows], device) - leads
    paths, counts = _pad_tokens([[b.tokens or [row.lead(b)] for b in row.branches] for row in rows], length + 1, device)
    goals = leads + length
    ends = torch.tensor(sorted(end_ids), device=device)
    last = paths.gather(-1, (counts - 1).clamp(min=0)[..., None])[..., 0]
    done = (counts == 0) | (counts >= goals) | ((leads == 0) & torch.isin(last, ends))

    num_rows, num_branches, width = paths.shape
    kv = _copy_prefix(prefix, rows, starts, room=num_branches * (width - 1))
    own = torch.eye(num_branches, dtype=torch.bool, device=device).repeat(1, width - 1).expand(num_rows, -1, -1)
    mask = network.additive(torch.cat([_sees_prefix(starts), own], dim=-1))[:, None]
    for step in range(width - 1):
        if done.all():
            break
        visible = mask[..., : kv.length + num_branches]
        hidden = network.extend(paths[..., step], visible, starts + step, kv)
        predicted = network.greedy(hidden.flatten(0, 1)).view(num_rows, num_branches)
        grows = ~done & (counts == step + 1)
        paths[..., step + 1] = torch.where(grows, predicted, paths[..., step + 1])
        counts += grows
        done |= grows & (torch.isin(predicted, ends) | (counts >= goals))
    cuts = zip(rows, paths.tolist(), leads.tolist(), counts.tolist(), strict=True)
    return [
        [Branch(branch.position, path[n][lead[n] : count[n]]) for n, branch in enumerate(row.branches)]
        for row, path, lead, count in cuts
    ]


@torch.no_grad()
def score_rows(network: Network, prefix: Prefix, rows: list[BranchRow]) -> list[list[Tensor]]:
    """Log-probs of each branch's own tokens, all branches of all rows in one forward."""
    hidden, targets, lengths = _before_tokens(network, prefix, rows)
    pieces = iter(network.token_logprobs(hidden, targets).cpu().split(lengths))
    return [[next(pieces) for _ in row.branches] for row in rows]


@torch.no_grad()
def choose_rows(network: Network, prefix: Prefix, rows: list[BranchRow], choices: Tokens) -> list[list[Tensor]]:
    """Log-probs of the `choices` after each branch, all branches of all rows in one forward."""
    rows = [replace(row, branches=[Branch(b.position, [*b.tokens, choices[0]]) for b in row.branches]) for row in rows]
    hidden, _, lengths = _before_tokens(network, prefix, rows)
    ends = hidden[torch.tensor(lengths).cumsum(0) - 1]
    parts = [log_softmax(network.head, part)[:, choices] for part in ends.split(network.chunk)]
    found = iter(torch.cat(parts).cpu())
    return [[next(found) for _ in row.branches] for row in rows]


def _before_tokens(network: Network, prefix: Prefix, rows: list[BranchRow]) -> tuple[Tensor, Tensor, list[int]]:
    """Of all branches in one list: the hidden state before each token, the tokens; and each branch's length."""
    device = network.device
    fed = [[[row.lead(b), *b.tokens[:-1]] if b.tokens else [] for b in row.branches] for row in rows]
    tokens = _pad([list(chain.from_iterable(row)) for row in fed], device)
    branch = _pad([[n for n, part in enumerate(row) for _ in part] for row in fed], device, padding=-1)
    offset = _pad([[w for part in row for w in range(len(part))] for row in fed], device)
    starts = _pad([[row.column(b) - 1 for b in row.branches for _ in b.tokens] for row in rows], device)

    kv = _copy_prefix(prefix, rows, starts, room=tokens.shape[1])
    own = (branch[:, :, None] == branch[:, None]) & (offset[:, :, None] >= offset[:, None])
    mask = network.additive(torch.cat([_sees_prefix(starts), own], dim=-1))[:, None]
    hidden = network.extend(tokens, mask, starts + offset, kv)

    each = [branch.tokens for row in rows for branch in row.branches]
    targets = torch.tensor(list(chain.from_iterable(each)), dtype=torch.long, device=device)
    return hidden[branch >= 0], targets, list(map(len, each))


def _pad(values: list[list[int]], device: torch.device, padding: int = 0) -> Tensor:
    """[R, N] with `padding` behind; N is at least 1."""
    rows = [torch.tensor(row or [padding]) for row in values]
    return pad_sequence(rows, batch_first=True, padding_value=padding).to(device)


def _pad_tokens(branches: list[list[Tokens]], width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens [R, N, W] with W at least `width`, and how many each branch has [R, N]."""
    counts = _pad([[len(tokens) for tokens in row] for row in branches], device)
    padded = torch.zeros(*counts.shape, max(width, int(counts.max())), dtype=torch.long)
    for r, row in enumerate(branches):
        for n, tokens in enumerate(row):
            padded[r, n, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
    return padded.to(device), counts


def _copy_prefix(prefix: Prefix, rows: list[BranchRow], starts: Tensor, room: int) -> KVBuffer:
    """The columns of the prefix that any branch sees, for `rows` only."""
    row_ids = torch.tensor([row.row for row in rows], device=starts.device)
    return KVBuffer(prefix.kv, row_ids, int(starts.max()), room)


def _sees_prefix(starts: Tensor) -> Tensor:
    """Which columns the branches see, bool [R, N, C]."""
    return torch.arange(int(starts.max()), device=starts.device) < starts[..., None]
