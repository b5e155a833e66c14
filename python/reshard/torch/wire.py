"""Point-to-point messages of one group, each wait with a deadline.

    post(send=(view, 3), receive=(slot, 1)) ──► Flight ──► land(flight, deadline) ──► peers that were lost

Messages between two ranks match by order; tags are not used. What is known of the backends and relied on:

- gloo: a killed peer fails every wait on it at once. A wait that expires closes all connections that this rank has in
  the group, so a wait is never cut into slices; completion shows only after the wait.
- nccl, and others that work on streams: the messages of a round are posted as one batch (alone, a send and a receive
  of the same pair would queue behind each other), `wait` orders streams and not the host, so completion is polled.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from .deadline import Deadline

_POLL_SECONDS = 0.0005


@dataclass
class Flight:
    """The messages of one round that were posted; `lost` maps a peer to how its connection was seen to end."""

    works: list[tuple[dist.Work, int]] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)


class Wire:
    """The data group of a synchroniser, numbered as the plan numbers ranks."""

    def __init__(self, group: dist.ProcessGroup, backend: str) -> None:
        self._group = group
        self._is_gloo = backend == "gloo"

    def post(self, send: tuple[torch.Tensor, int] | None, receive: tuple[torch.Tensor, int] | None) -> Flight:
        """Posts one message each way at most, as bytes of contiguous tensors. Never raises for a lost peer."""
        flight = Flight()
        if self._is_gloo:
            # One by one: a lost peer costs its own message alone.
            if receive:
                self._post_one(flight, *receive, is_send=False)
            if send:
                self._post_one(flight, *send, is_send=True)
        else:
            self._post_batch(flight, send, receive)
        return flight

    def land(self, flight: Flight, deadline: Deadline) -> dict[int, str]:
        """Waits for all messages of a flight; returns the peers that were lost, each with how that was seen."""
        while flight.works:
            work, peer = flight.works.pop()
            fault = landed(work, deadline) if self._is_gloo else self._polled(work, deadline)
            if fault:
                flight.lost.setdefault(peer, fault)
        return flight.lost

    def _post_one(self, flight: Flight, tensor: torch.Tensor, peer: int, *, is_send: bool) -> None:
        work = sent(self._group, tensor, peer) if is_send else received(self._group, tensor, peer)
        if isinstance(work, str):
            flight.lost.setdefault(peer, work)
        else:
            flight.works.append((work, peer))

    def _post_batch(
        self,
        flight: Flight,
        send: tuple[torch.Tensor, int] | None,
        receive: tuple[torch.Tensor, int] | None,
    ) -> None:
        operations, peers = [], []
        for operation, message in ((dist.isend, send), (dist.irecv, receive)):
            if message:
                tensor, peer = message
                peers.append(peer)
                other = dist.get_global_rank(self._group, peer)
                operations.append(dist.P2POp(operation, tensor, other, self._group))
        if not operations:
            return
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            flight.lost.update(dict.fromkeys(peers, explained(error)))
            return
        # A backend that coalesces returns one work for all.
        flight.works.extend((work, peers[min(index, len(peers) - 1)]) for index, work in enumerate(works))

    def _polled(self, work: dist.Work, deadline: Deadline) -> str | None:
        try:
            while not work.is_completed():
                if deadline.is_past:
                    return "it stopped answering: the time for moving ran out"
                time.sleep(_POLL_SECONDS)
            work.wait()
        except RuntimeError as error:
            return explained(error)
        return None


def sent(group: dist.ProcessGroup | None, tensor: torch.Tensor, peer: int) -> dist.Work | str:
    """A posted send, or why it could not be posted. `peer` is a rank of the group."""
    try:
        return group.send([tensor], peer, 0)  # type: ignore[union-attr]
    except RuntimeError as error:
        return explained(error)


def received(group: dist.ProcessGroup | None, tensor: torch.Tensor, peer: int) -> dist.Work | str:
    """A posted receive, or why it could not be posted. `peer` is a rank of the group."""
    try:
        return group.recv([tensor], peer, 0)  # type: ignore[union-attr]
    except RuntimeError as error:
        return explained(error)


def landed(work: dist.Work, deadline: Deadline) -> str | None:
    """Waits for a gloo message; how that failed, or None."""
    try:
        work.wait(deadline.left())
    except RuntimeError as error:
        return explained(error)
    return None


def explained(error: BaseException) -> str:
    """A backend's message in a few words: whether a peer died, stopped answering, or what else was said."""
    text = str(error).strip() or type(error).__name__
    if "Connection closed by peer" in text or "Connection reset" in text or "Broken pipe" in text:
        return "it closed its connection: it died, or gave up"
    if "Timed out" in text:
        return "it stopped answering: the time ran out"
    if "Application timeout caused pair closure" in text:
        return "an earlier wait for it ran out"
    return text.splitlines()[0]
