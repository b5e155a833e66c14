"""One plan from a trainer's layout into this rank's tensors, made once and carried out at every step.

    source.layout() ──► plan ──► Synchroniser           once; again if asked, or if a source says that it changed
    source.shards() ──► replicas compared ──► move      every step, into the same tensors

What fails on one rank is raised on every rank, naming it: nobody waits for a rank that has given up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch

from reshard import Layout, Plan, ReshardError, UsageError, plan
from reshard.rollout.council import Council
from reshard.rollout.source import WeightSource
from reshard.torch import Report, State, Synchroniser
from reshard.torch.replicas import ReplicaCheck


@dataclass(frozen=True)
class SyncOptions:
    """How weights are moved.

    Attributes:
        policy: which of several holders sends, as `reshard.plan` takes it.
        cast: whether the copies may be of another type than the trainer's weights.
        staging: limit on the memory through which messages go, in bytes, or such as "256MiB".
        timeout: seconds that a sync may take.
        replicas: when the trainer's replicas are compared first: "once" after each new plan, "always", or "never".
            Comparing reads every replicated byte once and sends 8 bytes a region.
    """

    policy: str | Callable[..., int] = "balanced"
    cast: bool = False
    staging: int | str = "256MiB"
    timeout: float = 60.0
    replicas: Literal["once", "always", "never"] = "once"

    def __post_init__(self) -> None:
        if self.replicas not in ("once", "always", "never"):
            raise UsageError(
                f"replicas is once, always or never, found {self.replicas!r}", found=self.replicas
            )


class WeightSync:
    """Moves a trainer's weights into this rank's tensors. Every rank of the world makes one and calls it alike.

    Args:
        source: this rank's part of the trainer; None on a rank that trains nothing.
        target: the layout of all copies, equal on every rank.
        tensors: this rank's, by storage name. Written in place.
        options: see `SyncOptions`.
        council: of all ranks, if there is one already.
        layout: the source's, if it is known already.

    Attributes:
        plan: in use now.
        plans_made: how often one was made.
        report: of the last sync that was committed.
    """

    def __init__(
        self,
        source: WeightSource | None,
        target: Layout,
        tensors: Mapping[str, torch.Tensor],
        options: SyncOptions | None = None,
        *,
        council: Council | None = None,
        layout: Layout | None = None,
    ) -> None:
        self._source, self._target, self._tensors = source, target, tensors
        self._options = options or SyncOptions()
        self._council = council or Council(self._options.timeout)
        self._synchroniser: Synchroniser | None = None
        self._state = State.NEW
        self._version: int | None = None
        self._is_check_due = False
        self._fingerprint: Any = None
        self.plan: Plan
        self.plans_made = 0
        self.report: Report | None = None
        self._prepare(layout or self._council.layout(source))

    @property
    def rank(self) -> int:
        """This rank's number in the world."""
        return self._council.rank

    @property
    def state(self) -> State:
        """What the tensors of this rank hold."""
        return self._state

    @property
    def version(self) -> int | None:
        """The version that they hold; None unless `state` is `State.COMMITTED`."""
        return self._version

    def replan(self) -> None:
        """Asks the source for its layout again and plans anew. Collective."""
        self._prepare(self._council.layout(self._source))

    def sync(self, version: int) -> Report:
        """Moves the weights as they are now, as `version`. Collective.

        Raises:
            RolloutError: a source could not give its weights, or a rank was lost before the move; nothing was moved.
            ReplicaError: replicas in the trainer differ; nothing was moved.
            SyncError: see `reshard.torch.Synchroniser.sync`.
        """
        with ExitStack() as released:
            shards: dict[str, Mapping[str, torch.Tensor]] = {"now": {}}

            def take() -> bool:
                if self._source is None:
                    return False
                if hasattr(self._source, "released"):
                    released.enter_context(self._source.released())
                shards["now"] = self._source.shards()
                before, self._fingerprint = self._fingerprint, _fingerprint(self._source)
                return before is not None and before != self._fingerprint

            if self._council.together("give its weights", take).count:
                self.replan()
            if self._is_check_due:
                self._compare(shards["now"])
                self._is_check_due = self._options.replicas == "always"
            return self._move(shards["now"], version)

    def close(self) -> None:
        """Leaves all groups. Collective."""
        self._leave()
        self._council.close()

    def _leave(self) -> None:
        if self._synchroniser is not None:
            self._synchroniser.close()

    def _compare(self, shards: Mapping[str, torch.Tensor]) -> None:
        found: list[ReshardError] = []

        def run() -> None:
            try:
                self._replicas.run(shards)
            except ReshardError as error:
                # It is raised alike on every rank already.
                found.append(error)

        self._council.together("compare its replicas", run, is_collective=True)
        if found:
            raise found[0]

    def _move(self, shards: Mapping[str, torch.Tensor], version: int) -> Report:
        synchroniser = self._synchroniser
        assert synchroniser is not None
        try:
            self.report = synchroniser.sync(source=shards, target=self._tensors, version=version)
        finally:
            # A new synchroniser that failed before it moved says nothing of what an older one wrote.
            if synchroniser.state is not State.NEW:
                self._state, self._version = synchroniser.state, synchroniser.version
        return self.report

    def _prepare(self, layout: Layout) -> None:
        options = self._options

        def make() -> None:
            self.plan = plan(layout, self._target, options.policy, cast=options.cast)
            if options.replicas != "never":
                self._replicas = ReplicaCheck(layout, self._council.group)

        self._council.together("make a plan", make)
        self._leave()
        self._synchroniser = Synchroniser(self.plan, staging=options.staging, timeout=options.timeout)
        self._is_check_due = options.replicas != "never"
        self.plans_made += 1


def _fingerprint(source: WeightSource) -> Any:
    return source.fingerprint() if hasattr(source, "fingerprint") else None
