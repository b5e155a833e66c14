"""Moving: fills, local copies, then the rounds, two of them in flight.

    round   k: pack ─► post ······► land ─► unpack
    round k+1:         pack ─► post ······► land ─► unpack

**No rank hangs because another one failed.** After an exception of its own a rank goes on in *drain*: it posts every
message that its peers wait for, from and into staging, and touches no tensor any more. A peer whose connection ended is
left out. One absolute deadline ends all waits. What happened is told afterwards, in the vote.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .ballot import Failure
from .binding import Bound
from .deadline import Deadline
from .share import CompiledShare, Strided, Transfer
from .staging import DEPTH, Slot, Staging
from .wire import Flight, Wire

Progress = Callable[[str, int, int], None]
"""Called with a stage, what of it is done and of how much."""


@dataclass
class Outcome:
    """How a move went on this rank.

    `failure` is to be told, `error` raised here; `lost` are the peers whose connections ended, each with how that was
    seen. Of the messages that were posted, so many went through staging and so many straight from or to a tensor.
    """

    failure: Failure | None = None
    error: BaseException | None = None
    lost: dict[int, str] = field(default_factory=dict)
    messages_staged: int = 0
    messages_direct: int = 0


@dataclass
class _InFlight:
    """A round that was posted. `arriving` is the message that is to be unpacked from its slot."""

    index: int
    flight: Flight
    arriving: Transfer | None = None
    staged_bytes: int = 0


class Move:
    """One move of one rank. Its errors are collected, not raised."""

    def __init__(
        self, rank: int, share: CompiledShare, wire: Wire | None, staging: Staging, deadline: Deadline
    ) -> None:
        self._rank = rank
        self._share = share
        self._wire = wire
        self._staging = staging
        self._deadline = deadline
        self._pending: deque[_InFlight] = deque()
        self.outcome = Outcome()

    def run(self, source: Bound, target: Bound, before_round: Callable[[int], None]) -> Outcome:
        """Moves everything. `before_round` is called with a number before each busy round, and once at the end."""
        self._staging.reset()
        self._guard(self._fill, target)
        self._guard(self._copy_local, source, target)
        for index in range(len(self._share.busy)):
            self._guard(before_round, index)
            if len(self._pending) == DEPTH:
                self._finish(target)
            if self._deadline.is_past and self.outcome.lost:
                break
            self._begin(index, source, target)
        while self._pending:
            self._finish(target)
        self._guard(before_round, len(self._share.busy))
        return self.outcome

    @property
    def _is_draining(self) -> bool:
        return self.outcome.failure is not None

    def _guard(self, step: Callable[..., None], *arguments: object) -> None:
        """Runs a step unless draining; an exception of any kind becomes this rank's failure."""
        if self._is_draining:
            return
        try:
            step(*arguments)
        except BaseException as error:
            self.outcome.error = error
            self.outcome.failure = Failure(self._rank, "move", told(error), certain=True)

    def _fill(self, target: Bound) -> None:
        for box, value in self._share.fills:
            _at(target, box).fill_(value)

    def _copy_local(self, source: Bound, target: Bound) -> None:
        for one, other in self._share.local:
            _at(target, other).copy_(_at(source, one))

    def _begin(self, index: int, source: Bound, target: Bound) -> None:
        """Packs and posts the messages of a round; from and into staging where they are not direct, or draining."""
        round_ = _InFlight(index, Flight())
        send, receive = (
            transfer if transfer is not None and transfer.peer not in self.outcome.lost else None
            for transfer in self._share.busy[index]
        )
        outgoing = incoming = None
        if send is not None:
            direct = self._direct(send, source)
            if direct is None:
                self._guard(self._pack, index, send, source)
                direct = self._staged(round_, self._staging.send, send)
            outgoing = (direct, send.peer)
        if receive is not None:
            direct = self._direct(receive, target)
            if direct is None:
                direct = self._staged(round_, self._staging.receive, receive)
                round_.arriving = receive
            incoming = (direct, receive.peer)
        self._staging.take(round_.staged_bytes)
        assert self._wire is not None, "a world of one has no rounds"
        round_.flight = self._wire.post(outgoing, incoming)
        self._pending.append(round_)

    def _staged(self, round_: _InFlight, slots: tuple[Slot, ...], transfer: Transfer) -> torch.Tensor:
        self.outcome.messages_staged += 1
        round_.staged_bytes += transfer.bytes
        return slots[round_.index % DEPTH].message(transfer.bytes)

    def _direct(self, transfer: Transfer, bound: Bound) -> torch.Tensor | None:
        """The tensor's own bytes, where a message needs no packing."""
        box = transfer.direct
        if box is None or self._is_draining:
            return None
        view = bound.view(box.buffer, box.dtype)
        if view.device != self._staging.device:
            return None
        self.outcome.messages_direct += 1
        return view.narrow(0, box.offset, transfer.bytes // box.dtype.itemsize).view(torch.uint8)

    def _finish(self, target: Bound) -> None:
        """Lands the oldest round in flight and unpacks what it brought."""
        assert self._wire is not None, "a world of one has no rounds"
        round_ = self._pending.popleft()
        for peer, cause in self._wire.land(round_.flight, self._deadline).items():
            self.outcome.lost.setdefault(peer, cause)
            if not self._is_draining:
                self.outcome.failure = Failure(peer, "move", cause)
        if round_.arriving is not None:
            self._guard(self._unpack, round_.index, round_.arriving, target)
        self._staging.give(round_.staged_bytes)

    def _pack(self, index: int, send: Transfer, source: Bound) -> None:
        slot = self._staging.send[index % DEPTH]
        for box in send.boxes:
            slot.box(box).copy_(_at(source, box))

    def _unpack(self, index: int, receive: Transfer, target: Bound) -> None:
        slot = self._staging.receive[index % DEPTH]
        for box in receive.boxes:
            _at(target, box).copy_(slot.box(box))


def _at(bound: Bound, box: Strided) -> torch.Tensor:
    view = bound.view(box.buffer, box.dtype)
    return view.as_strided(box.shape, box.strides, view.storage_offset() + box.offset)


def told(error: BaseException) -> str:
    """An exception in words, with its class."""
    try:
        text = str(error).strip()
    except Exception as another:
        text = f"its text cannot be told ({type(another).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
