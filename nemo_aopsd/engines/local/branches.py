"""Branches off responses, many at once behind a shared prefix: greedy continuation and scoring with a tree mask.

A branch token sees the prompt, `response[:position]` and its own branch up to itself. Where the token before the
branch must be asked for its prediction, that token leads the branch: fed anew, it sees what it saw in its place.

Shapes: R rows, N branches of a row (padded), W tokens of a branch (padded), C columns of the prefix.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemo_aopsd.engines.local.kv import KVBuffer, Prefix
from nemo_aopsd.engines.local.network import Network, log_softmax
from nemo_aopsd.types import Branch, Tokens

MAX_QUERIES = 512  # branch tokens of one row in one forward


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


def split(rows: list[BranchRow], width: int) -> Iterator[list[BranchRow]]:
    """Parts of `rows`, in order of branches, with at most `MAX_QUERIES` tokens a row at `width` tokens a branch."""
    size = max(1, MAX_QUERIES // max(1, width))
    for start in range(0, max(len(row.branches) for row in rows), size):
        part = [replace(row, branches=row.branches[start : start + size]) for row in rows]
        yield [row for row in part if row.branches]


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
    starts = _pad([[row.column(branch) - 1 for branch in row.branches] for row in rows], device)
    inputs = [[[row.lead(branch), *branch.tokens[:-1]] for branch in row.branches] for row in rows]
    paths, _ = _pad_tokens(inputs, 1, device)
    targets, lengths = _pad_tokens([[branch.tokens for branch in row.branches] for row in rows], 1, device)

    num_rows, num_branches, width = paths.shape
    num_queries = num_branches * width  # query n * W + w is token w of branch n
    kv = _copy_prefix(prefix, rows, starts, room=num_queries)
    branch, offset = torch.arange(num_branches, device=device), torch.arange(width, device=device)
    branch, offset = branch.repeat_interleave(width), offset.repeat(num_branches)
    own = (branch[:, None] == branch) & (offset[:, None] >= offset)
    before = _sees_prefix(starts).repeat_interleave(width, dim=1)
    mask = network.additive(torch.cat([before, own.expand(num_rows, -1, -1)], dim=-1))[:, None]
    positions = (starts[..., None] + torch.arange(width, device=device)).view(num_rows, num_queries)
    hidden = network.extend(paths.view(num_rows, num_queries), mask, positions, kv)

    is_token = (torch.arange(width, device=device) < lengths[..., None]).view(num_rows, num_queries)
    sizes = [len(branch.tokens) for row in rows for branch in row.branches]
    return hidden[is_token], targets.view(num_rows, num_queries)[is_token], sizes


def _pad(values: list[list[int]], device: torch.device) -> Tensor:
    """[R, N], zeros behind."""
    return pad_sequence([torch.tensor(row) for row in values], batch_first=True).to(device)


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
