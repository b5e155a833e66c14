"""The sync protocol over torch.distributed: bind, agree, move, verify, commit.

    bind ─► agree: digests, version, readiness ─► target torn ─► move ─► verify ─► vote ─► committed
      every rank's error is every rank's error    no byte moved before   every rank moved before the version flips

Who cannot learn the verdict on the votes is in doubt: the others may have committed, or not.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, TypeVar

import torch
import torch.distributed as dist

from reshard import UsageError

from .ballot import Digest, Failure, Record, judge_readiness, judge_votes
from .binding import Binder, Bound, Shards, check_apart, places
from .control import LEADER, Control, LeaderLost
from .deadline import Deadline, checked_seconds
from .errors import BrokenError, Stage, SyncError
from .groups import Membership, backend_for, default_device, dissolve, resolved_device, synchronise_host
from .mover import Move, Outcome, Progress, told
from .report import Report, State, Totals, peak_process_bytes
from .share import CompiledShare, compile_share
from .signals import DeferredSignals
from .sizes import size_bytes
from .staging import Staging
from .turn import Turn
from .wire import Wire, explained

if TYPE_CHECKING:
    from reshard import Plan

Result = TypeVar("Result")
Tensors = Mapping[str, torch.Tensor]
"""This rank's tensors by storage name."""

_PROTOCOL = 2
"""Grows when ranks of two versions of this module would misread each other."""


class Synchroniser:
    """Executes a plan, again and again, among the ranks of a torch.distributed world.

    Making one is collective: every rank of the world (of `group`, if given) calls it with equal arguments. It makes
    groups of its own and allocates all staging that it will ever use. Rank r of the plan is rank r of the world
    (of `group`). Without torch.distributed it is a world of one, in which everything is local. One sync goes on at a
    time: to begin another one, or to close, meanwhile (in another thread, or in a callback) is refused. Close it, or
    use it as a context: its connections and threads outlive it otherwise.

    Args:
        plan: the same on all ranks.
        staging: limit on the memory through which messages go, for all four chunks together; bytes, or "256MiB".
        timeout: seconds. Agreement takes at most this long, and so does all from then to the verdict on the move. A
            rank that waits for the leader waits for a grace longer: a quarter of it, 5 s at most.
        group: the ranks that take part; the world if None.
        device: where staging lies and from which messages are sent: the current CUDA device if the group speaks nccl,
            else the host. Tensors may lie there or in the host's memory.
        backend: of the data group; what torch uses for the device if None.

    Raises:
        SyncError: on every rank, if one could not be made on any: the ranks hold different plans or limits, the plan
            has more ranks than the world, the limit is too small for the plan. On the ranks that came, if some rank
            did not come in time; each then names itself.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        staging: int | str = "256MiB",
        timeout: float = 60.0,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        backend: str | None = None,
    ) -> None:
        self._state = State.NEW
        self._version: int | None = None
        self._broken: str | None = None
        self._turn = Turn()
        self._timeout = checked_seconds(timeout)
        self._grace = min(5.0, self._timeout / 4)
        self._member = Membership.of(group)
        self._device = default_device(group) if device is None else resolved_device(device)
        self._data: dist.ProcessGroup | None = None
        self._wire: Wire | None = None
        self._control = Control(self._member.rank, self._member.world)
        self._digest = Digest(0, 0, 0, _PROTOCOL)
        try:
            self._connect_control()
            data_backend = backend or backend_for(self._device)
            error = _attempt(self._prepare, plan, staging, data_backend)
            self._agree(None, error, "agree")
            self._connect_data(data_backend)
        except BaseException:
            self._break("it was never made")
            raise

    def _connect_control(self) -> None:
        if self._member.world > 1:
            groups = [self._new_group("gloo", torch.device("cpu")) for _ in range(2)]
            self._control = Control(self._member.rank, self._member.world, groups)

    def _connect_data(self, backend: str) -> None:
        if self._member.world > 1:
            self._data = self._new_group(backend, self._device)
            self._wire = Wire(self._data, backend)

    def _new_group(self, backend: str, device: torch.device) -> dist.ProcessGroup:
        try:
            return self._member.new_group(backend, device, self._timeout)
        except RuntimeError as error:
            cause = f"it could not connect to all others within {self._timeout:g} s: {explained(error)}"
            self._raise(Failure(self._member.rank, "agree", cause), error, None)

    def _prepare(self, plan: Plan, staging: int | str, backend: str) -> None:
        rank, world = self._member.rank, self._member.world
        if world > 1 and not dist.is_backend_available(backend):
            raise UsageError(f"this torch has no backend {backend!r}", found=backend)
        if plan.world > world:
            raise UsageError(f"the plan has {plan.world} ranks, the world {world}")
        limit = size_bytes(staging)
        schedule = plan.schedule(limit)
        self._digest = Digest(plan.fingerprint, schedule.fingerprint, limit, _PROTOCOL)
        has_share = rank < plan.world
        source = places(plan.source_storages(rank) if has_share else (), plan.source_buffers)
        target = places(plan.target_storages(rank) if has_share else (), plan.target_buffers)
        self._source = Binder("source", rank, source, self._device)
        self._target = Binder("target", rank, target, self._device)
        self._share = (
            compile_share(schedule.share(rank), schedule.rounds)
            if has_share
            else CompiledShare.empty(schedule.rounds)
        )
        self._staging = Staging(self._share.bytes_message_max, self._device)

    @property
    def state(self) -> State:
        """What the targets of this rank hold, as far as this synchroniser wrote them."""
        return self._state

    @property
    def version(self) -> int | None:
        """The version that is committed; None unless `state` is `State.COMMITTED`."""
        return self._version

    @property
    def staging_bytes(self) -> int:
        """The staging that this rank allocated: never above the limit, and never more than its messages need."""
        return self._staging.bytes

    def sync(
        self,
        source: Tensors | Callable[[], Tensors] | None = None,
        target: Tensors | Callable[[], Tensors] | None = None,
        *,
        version: int,
        verify: Callable[[], object] | None = None,
        progress: Progress | None = None,
    ) -> Report:
        """Moves one version from the sources to the targets, in place. Every rank calls it.

        Args:
            source, target: a contiguous tensor for every storage that this rank has on that side of the plan, by name,
                of exactly its bytes: of the type of one of its buffers, or bytes. Taken anew at each call: tensors may
                have moved in between. A function that returns them is called here, so that what it raises is raised on
                all ranks. A mapping with a method ``check()`` is asked last, before the ranks agree,
                whether its tensors still are what they were.
            version: an integer that all ranks agree on, such as the step.
            verify: called on this rank when its targets are written, before the ranks vote. It looks at them and raises
                if they are not as they should be: then no rank commits.
            progress: called on this rank as ``progress(stage, done, total)``: before "bind", before each of its rounds
                of "move" and after the last, and before "commit". What it raises fails the sync on every rank.

        Tensors are written without autograd: their addresses, ``requires_grad`` and ``grad`` stay, and the version
        counter of each target goes up, so that a backward through its old value is refused. On CUDA the current
        stream is waited for, so that sources must have been written, and targets are read, on it.

        Raises:
            SyncError: the same on every rank that could learn of it. In the stages "bind" and "agree" the targets are
                as they were; later they are torn, or in doubt. On the rank that failed, ``__cause__`` is its exception.
            BrokenError: a connection was lost in an earlier sync.
            UsageError: another sync of this synchroniser is going on.
            KeyboardInterrupt, SystemExit: as raised on this rank, after the others were told. Handlers of signals run
                before the next round, or when this rank has stopped waiting.
        """
        begin = time.monotonic()
        number, report = _number(version), progress or _silent
        # Views made in inference mode may write into inference tensors too.
        with DeferredSignals() as signals, self._turn.taken("begin another"), torch.inference_mode():
            if self._broken:
                raise BrokenError(f"this synchroniser cannot be used again: {self._broken}; make a new one")
            bound_source, bound_target = Bound(), Bound()

            def ready() -> None:
                nonlocal bound_source, bound_target
                report("bind", 0, 1)
                bound_source, bound_target = self._bind(_tensors(source), _tensors(target), version)
                signals.deliver()

            error = _attempt(ready)
            self._agree(number, error, "bind")
            self._state, self._version = State.TORN, None

            def before_round(index: int) -> None:
                signals.deliver()
                report("move", index, len(self._share.busy))

            deadline = Deadline.after(self._timeout)
            moving = time.monotonic()
            outcome = self._move(bound_source, bound_target, before_round, deadline.later(-self._grace))
            seconds_moving = time.monotonic() - moving
            self._after_move(outcome, "verify", _outside, verify or _silent)
            self._after_move(outcome, "commit", report, "commit", 0, 1)
            verdict = self._commit(number, outcome, deadline)
            seconds = time.monotonic() - begin
        return self._report(number, outcome, verdict, seconds_moving, seconds)

    def close(self) -> None:
        """Leaves the groups and frees staging. Every rank calls it, when no sync is going on.

        Raises:
            UsageError: a sync of this synchroniser is going on.
        """
        with self._turn.taken("close it"):
            self._break("it was closed")
            self._staging = Staging(0, self._device)

    def __enter__(self) -> Synchroniser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        member = self._member
        state = f"{self._state.value} {self._version}" if self._version is not None else self._state.value
        return f"<Synchroniser rank {member.rank} of {member.world}, {self._device}, {state}>"

    def _bind(self, source: Tensors, target: Tensors, version: int) -> tuple[Bound, Bound]:
        if not hasattr(version, "__index__") or _number(version) != version:
            raise UsageError(f"expected a version that fits in 64 bits, found {version!r}")
        bound = self._source.bind(source), self._target.bind(target)
        check_apart(*bound, self._member.rank)
        for shards in (source, target):
            if isinstance(shards, Shards):
                shards.check()
        getattr(target, "check_target", _silent)()
        return bound

    def _agree(self, version: int | None, error: BaseException | None, stage: Stage) -> None:
        """Goes on if all ranks are ready and hold the same; otherwise the same error on all."""
        failure = Failure(self._member.rank, stage, told(error), certain=True) if error else None
        record = Record(self._digest, version or 0, failure)
        deadline = Deadline.after(self._timeout)
        try:
            verdict = self._control.exchange(record, judge_readiness, "agree", deadline, self._grace)
        except LeaderLost as lost:
            self._break(f"rank {LEADER} was lost")
            self._raise(failure or Failure(LEADER, "agree", str(lost)), error, version)
        if verdict.failure:
            self._settle(verdict.failure, verdict.sound)
            self._raise(verdict.failure, error, version)

    def _move(
        self, source: Bound, target: Bound, before_round: Callable[[int], None], deadline: Deadline
    ) -> Outcome:
        move = Move(self._member.rank, self._share, self._wire, self._staging, deadline)

        def finished(index: int) -> None:
            before_round(index)
            if index == len(self._share.busy):
                synchronise_host(self._device)

        outcome = move.run(source, target, finished)
        counted = [tensor for tensor in target.tensors if not tensor.is_inference()]
        with torch.inference_mode(False):
            for tensor in counted:
                torch.autograd.graph.increment_version(tensor)
        return outcome

    def _after_move(
        self, outcome: Outcome, stage: Stage, step: Callable[..., object], *arguments: object
    ) -> None:
        """A step between the move and the vote, unless something has failed already."""
        error = _attempt(step, *arguments) if outcome.failure is None else None
        if error is not None:
            outcome.error = error
            outcome.failure = Failure(self._member.rank, stage, told(error), certain=True)

    def _commit(self, version: int, outcome: Outcome, deadline: Deadline) -> Record:
        """The vote. Commits on the verdict that all ranks moved; otherwise the same error on all."""
        failure = outcome.failure
        record = Record(
            self._digest,
            version,
            failure,
            sound=not outcome.lost,
            is_vote=True,
            bytes_sent=self._share.bytes_sent,
            bytes_received=self._share.bytes_received,
            bytes_local=self._share.bytes_local,
        )
        try:
            verdict = self._control.exchange(record, judge_votes, "move", deadline, self._grace)
        except LeaderLost as lost:
            if failure is None:
                self._state = State.IN_DOUBT
            self._break(f"rank {LEADER} was lost")
            if failure is None or not failure.certain:
                stage: Stage = "commit" if failure is None else "move"
                seen = f"; before, rank {failure.rank}: {failure.cause}" if failure else ""
                failure = Failure(LEADER, stage, f"{lost}{seen}")
            self._raise(failure, outcome.error, version)
        if verdict.failure is None:
            self._state, self._version = State.COMMITTED, version
        if verdict.failure:
            self._settle(verdict.failure, verdict.sound)
            self._raise(verdict.failure, outcome.error, version)
        return verdict

    def _settle(self, failure: Failure, is_sound: bool) -> None:
        """Leaves the groups where a connection was lost: those who still wait in them then see it at once."""
        if not is_sound:
            self._break(f"rank {failure.rank} was lost")

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason
        groups = [*self._control.leave(), self._data]
        self._data = self._wire = None
        while groups:
            dissolve(groups.pop())

    def _raise(self, failure: Failure, error: BaseException | None, version: int | None) -> NoReturn:
        if error is not None and not isinstance(error, Exception):
            raise error
        what = "the making of a synchroniser" if version is None else f"the sync of version {version}"
        raise SyncError(
            f"{what} failed at rank {failure.rank}, stage {failure.stage}: {failure.cause}",
            rank=failure.rank, stage=failure.stage, cause=failure.cause, version=version,
        ) from error  # fmt: skip

    def _report(
        self, version: int, outcome: Outcome, verdict: Record, seconds_moving: float, seconds: float
    ) -> Report:
        share = self._share
        return Report(
            version=version,
            bytes_local=share.bytes_local,
            bytes_sent=share.bytes_sent,
            bytes_received=share.bytes_received,
            rounds=share.rounds,
            messages_direct=outcome.messages_direct,
            messages_staged=outcome.messages_staged,
            staging_peak_bytes=self._staging.peak_bytes,
            seconds_moving=seconds_moving,
            seconds=seconds,
            peak_process_bytes=peak_process_bytes(),
            totals=Totals(verdict.bytes_local, verdict.bytes_sent, verdict.bytes_received),
        )


def _tensors(given: Tensors | Callable[[], Tensors] | None) -> Tensors:
    if given is None:
        return {}
    return _outside(given) if callable(given) else given


def _outside(step: Callable[[], Result]) -> Result:
    """What a caller's function says in the mode in which the caller called."""
    with torch.inference_mode(False):
        return step()


def _attempt(step: Callable[..., object], *arguments: object) -> BaseException | None:
    """Runs a step; what it raised, of any kind: it is told to the others before it is raised."""
    try:
        step(*arguments)
    except BaseException as error:
        return error
    return None


def _number(version: int) -> int:
    """The version as a record carries it; 0 for what is none, which `_bind` refuses."""
    try:
        number = operator.index(version)
    except TypeError:
        return 0
    return number if -(2**63) <= number < 2**63 else 0


def _silent(*_: object) -> None:
    pass
