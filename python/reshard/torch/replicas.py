"""Replicas that ought to be equal, compared without moving them: a 64-bit hash for each region that several ranks hold.

    down.bias on ranks 0 1 2 3 ──► each hashes its own ──► one all-gather of numbers ──► 7c on 0, 2 | e1 on 1, 3
                                                                                      ReplicaError on every rank

A plan reads one of several holders. If they hold different values (tensor-parallel ranks that were seeded differently,
a norm whose gradient was not summed) the target depends on who was chosen. This check finds that and names it.

Replicas may be cut at different places: regions are refined until each lies within one piece of every holder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from reshard import LayoutBuilder, ReshardError, plan

from .dtypes import REAL, bits

if TYPE_CHECKING:
    from reshard import Layout, Piece, Request

_SLAB_WORDS = 1 << 16
"""Words of 8 bytes that are hashed at one time: few enough to stay in a core's cache."""
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)


@dataclass(frozen=True)
class Region:
    """A box of a parameter and the ranks that hold all of it."""

    parameter: str
    origin: tuple[int, ...]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """A region whose holders disagree, and who holds the same: `camps` are groups of ranks, the largest first."""

    region: Region
    camps: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        camps = " | ".join(", ".join(map(str, camp)) for camp in self.camps)
        where = f"[{', '.join(f'{at}:{at + n}' for at, n in zip(self.region.origin, self.region.shape, strict=True))}]"
        return f"{self.region.parameter}{where} on ranks {camps}"


class ReplicaError(ReshardError):
    """Replicas of a parameter hold different values. Raised alike on every rank.

    Attributes:
        parameter, rank: of the first difference; the rank is the lowest one outside the largest camp.
        differences: all of them, in the layout's order.
    """

    def __init__(self, message: str, *, differences: Sequence[Difference] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.differences = tuple(differences)


class ReplicaCheck:
    """Compares the replicas of a layout, again and again. Every rank of the group makes one, of an equal layout.

    Args:
        layout: rank r of it is rank r of `group`.
        group: the ranks that compare; the world if None. The hashes go through it: 8 bytes a region and rank.
    """

    def __init__(self, layout: Layout, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        is_running = dist.is_available() and dist.is_initialized()
        self._rank = dist.get_rank(group) if is_running else 0
        self._world = dist.get_world_size(group) if is_running else 1
        self.regions = replicated_regions(layout)
        mine = {storage.id: storage.name for storage in layout.storages_of(self._rank)}
        self._buffers = {buffer.id: buffer for buffer in layout.buffers if buffer.storage in mine}
        self._names = {buffer.id: mine[buffer.storage] for buffer in self._buffers.values()}
        pieces: dict[str, list[Piece]] = {}
        for piece in layout.pieces():
            if piece.rank == self._rank:
                pieces.setdefault(piece.parameter, []).append(piece)
        self._own = {
            index: next(piece for piece in pieces[region.parameter] if _is_within(region, piece))
            for index, region in enumerate(self.regions)
            if self._rank in region.ranks
        }

    def run(self, shards: Mapping[str, torch.Tensor]) -> None:
        """Compares now. Collective: two small all-gathers.

        `shards` are this rank's tensors by storage name, contiguous, as a sync takes them.

        Raises:
            ReplicaError: on every rank, if any region differs.
            ReshardError: on every rank, if a rank could not hash its shards, naming it.
        """
        if not self.regions:
            return
        hashes = torch.zeros(len(self.regions), dtype=torch.int64)
        error: Exception | None = None
        try:
            for index in self._own:
                hashes[index] = self._hash(index, shards)
        except Exception as caught:
            error = caught
        refusals = self._gathered_objects(None if error is None else f"{type(error).__name__}: {error}")
        for rank, refusal in enumerate(refusals):
            if refusal is not None:
                raise ReshardError(
                    f"rank {rank} could not hash its replicas: {refusal}",
                    kind="invalid",
                    rank=rank,
                    found=refusal,
                ) from error
        self._judge(self._gathered(hashes))

    def _judge(self, hashes: list[list[int]]) -> None:
        differences = []
        for index, region in enumerate(self.regions):
            camps: dict[int, list[int]] = {}
            for rank in region.ranks:
                camps.setdefault(hashes[rank][index], []).append(rank)
            if len(camps) > 1:
                ordered = sorted(camps.values(), key=lambda ranks: (-len(ranks), ranks))
                differences.append(Difference(region, tuple(tuple(ranks) for ranks in ordered)))
        if differences:
            names = list(dict.fromkeys(difference.region.parameter for difference in differences))
            shown = "; ".join(map(str, differences[:4])) + ("; ..." if len(differences) > 4 else "")
            many = "parameter" if len(names) == 1 else "parameters"
            hint = "were the ranks seeded alike, and are gradients of whole parameters summed over them?"
            raise ReplicaError(
                f"replicas of {len(names)} {many} differ: {shown}; {hint}",
                kind="invalid",
                parameter=names[0],
                rank=differences[0].camps[1][0],
                found=names,
                differences=differences,
                hint=hint,
            )

    def _hash(self, index: int, shards: Mapping[str, torch.Tensor]) -> int:
        region, piece = self.regions[index], self._own[index]
        buffer = self._buffers[piece.buffer]
        real = REAL[buffer.dtype]
        flat = shards[self._names[buffer.id]].detach().reshape(-1).view(torch.uint8)
        window = flat.narrow(0, buffer.offset, buffer.length * real.itemsize).view(bits(real))
        inside = zip(region.origin, piece.origin, piece.strides, strict=True)
        offset = piece.offset + sum((at - base) * stride for at, base, stride in inside)
        box = window.as_strided(region.shape, piece.strides, window.storage_offset() + offset)
        return hash_box(box)

    def _gathered(self, hashes: torch.Tensor) -> list[list[int]]:
        if self._world == 1:
            return [hashes.tolist()]
        if "nccl" in str(dist.get_backend_config(self._group)):
            hashes = hashes.cuda()
        everyone = [torch.empty_like(hashes) for _ in range(self._world)]
        dist.all_gather(everyone, hashes, group=self._group)
        return [row.tolist() for row in everyone]

    def _gathered_objects(self, mine: str | None) -> list[str | None]:
        everyone: list[str | None] = [mine] * self._world
        if self._world > 1:
            dist.all_gather_object(everyone, mine, group=self._group)
        return everyone


def check_replicas(
    layout: Layout, shards: Mapping[str, torch.Tensor], *, group: dist.ProcessGroup | None = None
) -> None:
    """Compares the replicas of a layout once; see `ReplicaCheck`."""
    ReplicaCheck(layout, group).run(shards)


def replicated_regions(layout: Layout) -> list[Region]:
    """The regions that several ranks hold, refined until each lies in one piece of every holder. Pure.

    The planner is asked: for a target that holds everything, it must find all holders of every region.

    Raises:
        PlanError: parts of a parameter that nobody holds, or that are stored scaled.
    """
    everything = LayoutBuilder()
    for parameter in layout.parameters:
        number = everything.parameter(parameter.name, parameter.shape, parameter.dtype)
        length = torch.Size(parameter.shape).numel()
        buffer = everything.tensor(0, parameter.name, parameter.dtype, length)
        if length:
            everything.place(number, buffer)
    requests: list[Request] = []

    def remember(request: Request) -> int:
        requests.append(request)
        return request.candidates[0]

    plan(layout, everything.build(), remember)
    return [
        Region(request.parameter, tuple(request.origin), tuple(request.shape), tuple(request.candidates))
        for request in requests
        if len(request.candidates) > 1
    ]


def _is_within(region: Region, piece: Piece) -> bool:
    sides = zip(region.origin, region.shape, piece.origin, piece.shape, strict=True)
    return all(start <= at and at + n <= start + extent for at, n, start, extent in sides)


def hash_box(box: torch.Tensor) -> int:
    """A hash of the bits of a tensor, in row-major order, whatever its strides.

    A sum, modulo 2^64, over 8-byte words, each mixed with its position (splitmix64). Mixing is one to one: tensors that
    differ in one word always differ in their hash, others but for a chance of about 2^-64. A sum of words times odd
    numbers would not do: two flipped signs, at the top of their words, would cancel.
    """
    total = 0
    rows = box.reshape(1) if box.dim() == 0 else box
    if rows.dim() > 1 and rows[0].numel() * rows.element_size() > 8 * _SLAB_WORDS:
        for row in rows:
            total = _folded(total, hash_box(row))
        return total
    per_row = max(1, rows[0].numel() * rows.element_size())
    step = max(1, 8 * _SLAB_WORDS // per_row)
    for slab in torch.split(rows, step):
        total = _folded(total, _slab_hash(slab))
    return total


def _slab_hash(slab: torch.Tensor) -> int:
    size_bytes = slab.numel() * slab.element_size()
    words = torch.zeros(-(-size_bytes // 8), dtype=torch.int64, device=slab.device)
    words.view(slab.dtype)[: slab.numel()].view(slab.shape).copy_(slab)
    table = _positions(1 << max(0, len(words) - 1).bit_length(), slab.device)
    return int(_mixed(words.bitwise_xor_(table[: len(words)])).sum())


@lru_cache(maxsize=4)
def _positions(count: int, device: torch.device) -> torch.Tensor:
    """A number without a pattern for each position."""
    return _mixed(torch.arange(1, count + 1, dtype=torch.int64, device=device) * _FACTOR)


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """The mixing steps of splitmix64, in place, on signed numbers."""
    high = torch.empty_like(x)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 0)):
        torch.bitwise_right_shift(x, shift, out=high)
        # The shift of a signed number drags its sign along: the mask takes that off.
        x.bitwise_xor_(high.bitwise_and_((1 << (64 - shift)) - 1))
        if factor:
            x.mul_(factor - (1 << 64))
    return x


def _folded(total: int, more: int) -> int:
    """Two hashes as one, in 64 signed bits; the order matters."""
    value = (total * 0x100000001B3 + more) & ((1 << 64) - 1)
    return value - (1 << 64) if value >> 63 else value
