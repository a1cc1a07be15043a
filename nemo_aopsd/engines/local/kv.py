"""Keys and values: a buffer that decoding writes in place, and the prefixes kept from log-probs to probes."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from nemo_aopsd.types import Tokens


class LineKV:
    """Keeps keys and values of rows in line, as `DynamicCache` does of padded ones: [R, heads, S, head size]."""

    def __init__(self, lengths: list[int], device: torch.device):
        places = torch.arange(sum(lengths)).split(lengths)
        self.places = pad_sequence(list(places), batch_first=True).to(device)  # [R, S]; behind a row the first token's
        self.layers: list[SimpleNamespace] = []

    def update(self, keys: Tensor, values: Tensor, *_args, **_kwargs) -> tuple[Tensor, Tensor]:
        """Called from each attention layer in turn, with [1, heads, all tokens, head size], which come back."""
        self.layers.append(SimpleNamespace(keys=self._padded(keys), values=self._padded(values)))
        return keys, values

    def get_seq_length(self, *_args) -> int:
        return 0

    def _padded(self, line: Tensor) -> Tensor:
        return line[0].transpose(0, 1)[self.places].transpose(1, 2)


class KVBuffer:
    """Keys and values of R rows with room for more columns. Transformers calls `update` from each attention layer.

    Padding columns stay in place: rotary positions are in the keys, so a column's index means nothing and the mask
    alone says what a token sees.
    """

    def __init__(self, prefix: DynamicCache | LineKV, rows: Tensor, columns: int, room: int):
        """Copies `rows` of `prefix`, first `columns` columns of it, and leaves `room` for more."""
        self.length = columns
        layers: list[Any] = prefix.layers
        self._layers = [
            (_with_room(layer.keys, rows, columns, room), _with_room(layer.values, rows, columns, room))
            for layer in layers
        ]

    @property
    def room(self) -> int:
        return self._layers[0][0].shape[2] - self.length

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_args, **_kwargs) -> tuple[Tensor, Tensor]:
        """Write new [R, heads, Q, head size] columns at `length`; returns all columns. `Network.extend` moves on."""
        end = self.length + keys.shape[2]
        all_keys, all_values = self._layers[layer_idx]
        all_keys[:, :, self.length : end] = keys
        all_values[:, :, self.length : end] = values
        return all_keys[:, :, :end], all_values[:, :, :end]

    def get_seq_length(self, *_args) -> int:
        return self.length

    def rebuild(self, rows: Tensor, room: int) -> None:
        """Keep only `rows`, in that order, with new room; one layer at a time, so that little is held twice."""
        for index, layer in enumerate(self._layers):
            keys, values = (_with_room(tensor, rows, self.length, room) for tensor in layer)
            self._layers[index] = keys, values


class FixedKVBuffer(KVBuffer):
    """Always read whole and written at `cursor` [1] on the device: constant shapes and addresses, for CUDA graphs.

    The mask must hide the columns that are not written yet.
    """

    def __init__(self, prefix: DynamicCache | LineKV, rows: Tensor, columns: int, room: int):
        super().__init__(prefix, rows, columns, _filled_up(columns, room))
        self.cursor = torch.tensor([columns], device=rows.device)

    def rebuild(self, rows: Tensor, room: int) -> None:
        super().rebuild(rows, _filled_up(self.length, room))

    def sides(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        """The layer's keys and values [R, heads, columns, head size], whole."""
        return self._layers[layer_idx]

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_args, **_kwargs) -> tuple[Tensor, Tensor]:
        """Write new [R, heads, 1, head size] columns at `cursor`; returns the whole buffer."""
        all_keys, all_values = self.sides(layer_idx)
        all_keys.index_copy_(2, self.cursor, keys)
        all_values.index_copy_(2, self.cursor, values)
        return all_keys, all_values


def _filled_up(columns: int, room: int) -> int:
    """`room`, raised until the width is a multiple of 128, so that few occur; if not of 8, attention copies masks."""
    return room + -(columns + room) % 128


def _with_room(tensor: Tensor, rows: Tensor, columns: int, room: int) -> Tensor:
    _, heads, _, size = tensor.shape
    buffer = tensor.new_empty(len(rows), heads, columns + room, size)
    # Masked columns still take part as 0 * value, so what was never written must not be NaN.
    buffer[:, :, columns:] = 0
    torch.index_select(tensor[:, :, :columns], 0, rows, out=buffer[:, :, :columns])
    return buffer


@dataclass(frozen=True, slots=True)
class Prefix:
    """Keys and values of one micro-batch of `prompt + response` rows, zeros or anything behind a row."""

    kv: DynamicCache | LineKV
    rows: list[tuple[Tokens, Tokens]]

    @property
    def num_bytes(self) -> int:
        layers: list[Any] = self.kv.layers
        return sum(2 * layer.keys.nbytes for layer in layers)


class PrefixCache:
    """The prefixes of the latest `logprobs` call of one model, each for one use.

    Owner is the model whose weights made them: it clears them when the weights change or new log-probs are asked for.
    """

    def __init__(self, max_bytes: float):
        self.max_bytes = max_bytes
        self._prefixes: list[Prefix] = []

    def clear(self) -> None:
        self._prefixes = []

    @property
    def is_full(self) -> bool:
        return self.num_bytes >= self.max_bytes

    @property
    def num_bytes(self) -> int:
        return sum(prefix.num_bytes for prefix in self._prefixes)

    def put(self, prefix: Prefix) -> None:
        if self.num_bytes + prefix.num_bytes <= self.max_bytes:
            self._prefixes.append(prefix)

    def take(self, rows: list[tuple[Tokens, Tokens]], wanted: list[int]) -> list[tuple[Prefix, list[tuple[int, int]]]]:
        """Hand over the prefixes of any of the `wanted` rows, with pairs (row in the prefix, index in `rows`)."""
        indices: dict[tuple, list[int]] = {}
        for index in wanted:
            indices.setdefault(_key(rows[index]), []).append(index)
        found = [
            (prefix, [(place, index) for place, row in enumerate(prefix.rows) for index in indices.pop(_key(row), [])])
            for prefix in self._prefixes
        ]
        self._prefixes = [prefix for prefix, places in found if not places]
        return [(prefix, places) for prefix, places in found if places]


def _key(row: tuple[Tokens, Tokens]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(row[0]), tuple(row[1])
