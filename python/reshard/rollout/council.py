"""What the ranks of a world must know of each other between syncs: whether all could take a step, and who could not.

    step() on every rank ──record──► lowest rank ──verdict──► Told(count, lowest), or one RolloutError on all

The ranks agree as those of a `Synchroniser` do, so a rank that died or did not come is named by all that are left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from reshard import Layout, ReshardError, UsageError
from reshard.rollout.source import WeightSource
from reshard.torch.ballot import Answers, Digest, Failure, Record, judge_votes
from reshard.torch.control import LEADER, Control, LeaderLost
from reshard.torch.deadline import Deadline
from reshard.torch.groups import Membership, dissolve
from reshard.torch.mover import told
from reshard.torch.wire import explained

_NO_PLAN = Digest(0, 0, 0, 0)


class RolloutError(ReshardError):
    """A rollout copy that cannot do what was asked, or a rank that failed or was lost before weights moved."""


@dataclass(frozen=True)
class Told:
    """On how many ranks a step answered yes, and the lowest of these (the size of the world if there is none)."""

    count: int
    lowest: int


class Council:
    """All ranks of the world. Making one is collective.

    Args:
        timeout: seconds that a rank waits for the others to come to a step.

    Attributes:
        rank, world: as torch.distributed numbers them; 0 of 1 without it.
        group: a gloo group of all ranks; None in a world of one.

    Raises:
        RolloutError: some rank did not come; each that came names itself.
    """

    def __init__(self, timeout: float) -> None:
        member = Membership.of(None)
        self.rank, self.world = member.rank, member.world
        self.group: Any = None
        self._timeout, self._grace = timeout, min(5.0, timeout / 4)
        self._control = Control(self.rank, self.world)
        self._broken: tuple[int, str] | None = None
        if self.world == 1:
            return
        try:
            cpu = torch.device("cpu")
            self.group, *groups = [member.new_group("gloo", cpu, timeout) for _ in range(3)]
        except RuntimeError as error:
            raise self._error(self.rank, f"could not connect to all others: {explained(error)}") from error
        self._control = Control(self.rank, self.world, groups)

    def together(self, what: str, step: Callable[[], object], *, is_collective: bool = False) -> Told:
        """Runs a local step on every rank, and says how many answered yes; an error is raised on all.

        What a collective step raises may be another rank's fault: a rank that is silent is named first.

        Raises:
            RolloutError: naming the rank whose step failed, or that was lost, and why. Where a step failed, what it
                raised is the cause.
        """
        if self._broken:
            rank, reason = self._broken
            raise self._error(rank, f"could not {what}: {reason}")
        is_yes, error, failure = False, None, None
        try:
            is_yes = bool(step())
        except Exception as caught:
            error = caught
            failure = Failure(self.rank, "bind", told(error), certain=not is_collective)
        record = Record(_NO_PLAN, self.rank if is_yes else self.world, failure, bytes_sent=int(is_yes))
        deadline = Deadline.after(self._timeout)
        try:
            verdict = self._control.exchange(record, _judge, "bind", deadline, self._grace)
        except LeaderLost as lost:
            verdict = replace(record, failure=Failure(LEADER, "bind", str(lost)), sound=False)
        if verdict.failure is None:
            return Told(verdict.bytes_sent, verdict.version)
        if not verdict.sound:
            self._broken = verdict.failure.rank, "it was lost before"
            self.close()
        parameter = getattr(error, "parameter", None)
        raise self._error(
            verdict.failure.rank, f"could not {what}: {verdict.failure.cause}",
            parameter=parameter, found=verdict.failure.cause,
        ) from error  # fmt: skip

    def layout(self, source: WeightSource | None) -> Layout:
        """The source's layout, on ranks without a source too."""
        holder: list[Layout | None] = [None]

        def ask() -> bool:
            if source is not None:
                holder[0] = source.layout()
            return source is not None

        sources = self.together("describe its weights", ask)
        if not sources.count:
            raise UsageError("no rank has a source of weights")
        if sources.count < self.world:
            mine = holder[0]

            def share() -> None:
                dist.broadcast_object_list(holder, sources.lowest, group=self.group)

            self.together("pass the layout on", share, is_collective=True)
            holder[0] = mine or holder[0]
        assert holder[0] is not None
        return holder[0]

    def close(self) -> None:
        """Leaves its groups: whoever waits in them sees that at once."""
        groups, self.group = [*self._control.leave(), self.group], None
        self._broken = self._broken or (self.rank, "this was closed")
        while groups:
            dissolve(groups.pop())

    def _error(self, rank: int, what: str, **facts: Any) -> RolloutError:
        return RolloutError(f"rank {rank} {what}", kind="invalid", rank=rank, **facts)


def _judge(own: Record, answers: Answers) -> Record:
    records = [answer for answer in answers if isinstance(answer, Record)]
    return replace(judge_votes(own, answers), version=min(record.version for record in records))
