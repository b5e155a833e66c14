"""What a data-parallel group keeps of one tensor-parallel rank's shards, in a form that a peer can extrapolate from.

    rule "whole"    every rank keeps every entry at its start            weights at stages 0 to 2
    rule "window"   one space is cut into equal windows, rank k keeps     optimizer states at stages 1, 2
                    the k-th: an entry may straddle a cut                 [ a a a|a b b|b b c|c . . ]
    rule "slice"    every entry is cut on its own into slots of           everything at stage 3
                    ceil(numel / ranks), rank k keeps the k-th            rank 0 [ a a|b b b ]  rank 1 [ a .|b b . ]

All ranks of the group keep the same storages. Padding (`.`) is in no run. Sources: DeepSpeed 0.19.8
`runtime/zero/stage_1_and_2.py`, `runtime/zero/partition_parameters.py`, `runtime/zero/stage3.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Held", "StorageSpec"]

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class StorageSpec:
    """A storage that every rank of the group has: name, dtype (short name) and length in elements, padding included."""

    name: str
    dtype: str
    length: int


@dataclass(frozen=True, eq=False)
class Held:
    """What the ranks of one data-parallel group keep.

    Attributes:
        rule: "whole", "window" or "slice".
        tp_index: which tensor-parallel rank's shards these are.
        ranks: the group, in global ranks, in the order of its windows.
        storages: what each of them has.
        entries: int64 (n, 5), a row a shard: parameter, storage, start and numel (elements), partition (an index into
            `partitions`, "slice" only). Starts count from the storage's begin, under "window" from the space's.
        partitions: the groups over which entries are sliced, in global ranks, in the order of the slices. They are
            `ranks`, or the world for what plain `zero.Init` partitioned.
    """

    rule: str
    tp_index: int
    ranks: tuple[int, ...]
    storages: tuple[StorageSpec, ...]
    entries: Rows
    partitions: tuple[tuple[int, ...], ...] = ()

    def runs(self, rank: int) -> Rows:
        """int64 (n, 5), a row an entry: parameter, storage, offset, first, length.

        Elements [first, first + length) of the flattened shard lie at element `offset` of the storage of `rank`, which
        is one of `ranks`. The length is zero where the rank keeps nothing of an entry.
        """
        parameter, storage, start, numel, partition = self.entries.T
        if self.rule == "whole":
            offset, first, length = start, np.zeros_like(start), numel
        elif self.rule == "window":
            window = np.array([spec.length for spec in self.storages], np.int64)[storage]
            begin = self.ranks.index(rank) * window
            low, high = np.maximum(start, begin), np.minimum(start + numel, begin + window)
            length = np.maximum(high - low, 0)
            kept = length > 0
            offset, first = np.where(kept, low - begin, 0), np.where(kept, low - start, 0)
        else:
            ways = np.array([len(ranks) for ranks in self.partitions], np.int64)[partition]
            at = np.array([ranks.index(rank) for ranks in self.partitions], np.int64)[partition]
            slot = -(-numel // ways)
            offset, first = start, np.minimum(at * slot, numel)
            length = np.minimum(slot, numel - first)
        return np.stack([parameter, storage, offset, first, length], axis=1)

    def same(self, other: Held) -> bool:
        """Whether two accounts agree."""
        return self._facts() == other._facts() and np.array_equal(self.entries, other.entries)

    def _facts(self) -> tuple[Any, ...]:
        return self.rule, self.tp_index, self.ranks, self.storages, self.partitions
