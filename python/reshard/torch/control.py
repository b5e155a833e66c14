"""Agreement: every rank tells the leader, the leader tells every rank its verdict.

    rank 1 ──record──╮             ╭──verdict──► rank 1
    rank 2 ──record──┼─► rank 0 ───┼──verdict──► rank 2       over gloo, on the host
    rank 3 ─ ✗ ──────╯  (leader)   ╰─ ✗                       rank 3 died: the verdict names it

The leader is the lowest rank. It waits until a deadline, the others a grace longer, so that they hear from it. Records
and verdicts have a group each: after a wait that expired, gloo closes all connections of that group on that rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from .ballot import RECORD_BYTES, Answers, Failure, Record
from .deadline import Deadline
from .errors import Stage
from .wire import landed, received, sent

LEADER = 0

Judge = Callable[[Record, Answers], Record]


class LeaderLost(Exception):
    """No verdict came; holds in words how that was seen."""


class Control:
    """The ranks of a synchroniser and the groups over which they agree. A world of one needs no groups."""

    def __init__(
        self, rank: int, world: int, groups: Sequence[dist.ProcessGroup | None] = (None, None)
    ) -> None:
        self._rank = rank
        self._world = world
        self._records, self._verdicts = groups

    def leave(self) -> list[dist.ProcessGroup | None]:
        """Forgets its groups and hands them over, to be dissolved."""
        groups = [self._records, self._verdicts]
        self._records = self._verdicts = None
        return groups

    def exchange(
        self, own: Record, judge: Judge, stage: Stage, deadline: Deadline, grace_seconds: float
    ) -> Record:
        """This rank's record in, the verdict on all ranks' records out: the same on every rank.

        Raises `LeaderLost` where no verdict came until `deadline` and the grace had passed.
        """
        if self._rank == LEADER:
            answers = self._collect(own, stage, deadline)
            verdict = judge(own, answers)
            reachable = [rank for rank, answer in enumerate(answers) if rank and isinstance(answer, Record)]
            self._announce(verdict, reachable, grace_seconds)
            return verdict
        return self._follow(own, deadline.later(grace_seconds))

    def _collect(self, own: Record, stage: Stage, deadline: Deadline) -> list[Record | Failure]:
        others = range(LEADER + 1, self._world)
        buffers = {rank: torch.empty(RECORD_BYTES, dtype=torch.uint8) for rank in others}
        works = {rank: received(self._records, buffers[rank], rank) for rank in others}
        answers: list[Record | Failure] = [own]
        for rank in others:
            fault = _fault(works[rank], deadline)
            answers.append(Failure(rank, stage, fault) if fault else _record(buffers[rank]))
        return answers

    def _announce(self, verdict: Record, ranks: list[int], grace_seconds: float) -> None:
        message = _tensor(verdict)
        notices = [sent(self._verdicts, message, rank) for rank in ranks]
        limit = Deadline.after(grace_seconds)
        for notice in notices:
            # Whom the verdict does not reach cannot commit, and says so itself.
            _fault(notice, limit)

    def _follow(self, own: Record, deadline: Deadline) -> Record:
        buffer = torch.empty(RECORD_BYTES, dtype=torch.uint8)
        message = _tensor(own)
        # The receive is posted only after the send went well: a failed one leaves nothing behind.
        fault = _fault(sent(self._records, message, LEADER), deadline)
        fault = fault or _fault(received(self._verdicts, buffer, LEADER), deadline)
        if fault:
            raise LeaderLost(f"no verdict from the leader, rank {LEADER}: {fault}")
        return _record(buffer)


def _fault(work: dist.Work | str, deadline: Deadline) -> str | None:
    return work if isinstance(work, str) else landed(work, deadline)


def _tensor(record: Record) -> torch.Tensor:
    return torch.frombuffer(bytearray(record.to_bytes()), dtype=torch.uint8)


def _record(buffer: torch.Tensor) -> Record:
    return Record.from_bytes(bytes(buffer.tolist()))
