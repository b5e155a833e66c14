"""A rank's share of a schedule, compiled once: what a sync does again and again, as plain tuples.

    Box(buffer 5, offset 12, shape (4, 2), strides (6, 1), wire bf16)        of the schedule
      └─► Strided(buffer 5, offset 12, ..., dtype int16, position 0)         same type both sides: bits are moved
      └─► Strided(buffer 5, offset 12, ..., dtype float32, wire bfloat16)    another type: converted

A message whose boxes follow each other in memory, without conversion, is *direct*: it is sent from, or received into,
the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch

from .dtypes import REAL, bits

if TYPE_CHECKING:
    from reshard import Box, Message, Share


class Strided(NamedTuple):
    """A box of a buffer, and where it lies in a message.

    `offset` and `strides` count elements of `dtype` in the buffer; `position` counts elements of `wire` in the
    message; `dense` are the row-major strides of `shape`.
    """

    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    wire: torch.dtype
    position: int
    dense: tuple[int, ...]


class Transfer(NamedTuple):
    """One message. `direct` is its first box if the message is one run of memory from there."""

    peer: int
    bytes: int
    boxes: tuple[Strided, ...]
    direct: Strided | None


class Local(NamedTuple):
    """A copy inside a rank."""

    source: Strided
    target: Strided


class Padding(NamedTuple):
    """A box of a target and the one element, as its bits, that fills it."""

    box: Strided
    value: torch.Tensor


@dataclass(frozen=True)
class CompiledShare:
    """What one rank does in a sync. Rounds in which it has nothing to do are left out.

    `rounds` counts those of the whole schedule. `bytes_message_max` is the longest message of this rank.
    """

    fills: tuple[Padding, ...]
    local: tuple[Local, ...]
    busy: tuple[tuple[Transfer | None, Transfer | None], ...]
    rounds: int
    bytes_message_max: int
    bytes_local: int
    bytes_sent: int
    bytes_received: int

    @staticmethod
    def empty(rounds: int) -> CompiledShare:
        """The share of a rank that is in the world but not in the plan."""
        return CompiledShare((), (), (), rounds, 0, 0, 0, 0)


def compile_share(share: Share, rounds: int) -> CompiledShare:
    """Compiles what one rank does in a schedule of `rounds` rounds."""
    busy = tuple(
        (_transfer(send), _transfer(receive))
        for send, receive in share.rounds
        if send is not None or receive is not None
    )
    local = tuple(_local(source, target) for source, target in share.local)
    lengths = [transfer.bytes for pair in busy for transfer in pair if transfer]
    return CompiledShare(
        fills=tuple(_padding(box, value) for box, value in share.fills),
        local=local,
        busy=busy,
        rounds=rounds,
        bytes_message_max=max(lengths, default=0),
        bytes_local=sum(prod(copy.target.shape) * copy.target.dtype.itemsize for copy in local),
        bytes_sent=sum(send.bytes for send, _ in busy if send),
        bytes_received=sum(receive.bytes for _, receive in busy if receive),
    )


def _strided(box: Box, wire: torch.dtype) -> Strided:
    dtype, shape = REAL[box.dtype], tuple(box.shape)
    position = box.position // wire.itemsize
    if dtype == wire:
        dtype = wire = bits(dtype)
    return Strided(box.buffer, box.offset, shape, tuple(box.strides), dtype, wire, position, dense(shape))


def _transfer(message: Message | None) -> Transfer | None:
    if message is None:
        return None
    boxes = tuple(_strided(box, REAL[box.wire]) for box in message.boxes)
    direct = boxes[0] if boxes and is_one_run(boxes) else None
    return Transfer(message.peer, message.bytes, boxes, direct)


def _local(source: Box, target: Box) -> Local:
    return Local(_strided(source, REAL[target.dtype]), _strided(target, REAL[source.dtype]))


def _padding(box: Box, value: bytes) -> Padding:
    dtype = REAL[box.dtype]
    element = torch.frombuffer(bytearray(value), dtype=bits(dtype))
    return Padding(_strided(box, dtype), element[0])


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of a shape, in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def is_one_run(boxes: Sequence[Strided]) -> bool:
    """Whether boxes follow each other in one buffer as they do in the message, in the type of the wire."""
    buffer, offset = boxes[0].buffer, boxes[0].offset
    for box in boxes:
        if (box.buffer, box.offset) != (buffer, offset) or box.dtype != box.wire:
            return False
        if not is_contiguous(box.shape, box.strides):
            return False
        offset += prod(box.shape)
    return True


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a box lies in one run, row-major; the strides of axes of length one do not matter."""
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True
