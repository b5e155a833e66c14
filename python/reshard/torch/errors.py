"""What can go wrong in a sync: one rank's error is every rank's error.

rank 2: BindError ──► agree ──► rank 0, 1, 3: SyncError(rank=2, stage="bind", cause="storage ...")
                           └──► rank 2: the same SyncError, `__cause__` is the BindError
"""

from __future__ import annotations

from typing import Any, Literal

from reshard import ReshardError

Stage = Literal["bind", "agree", "move", "verify", "commit"]
"""Where a sync was when it failed. Before "move" no byte of a target has been written."""

STAGES: tuple[Stage, ...] = ("bind", "agree", "move", "verify", "commit")


class BindError(ReshardError):
    """A tensor that cannot stand for a storage of the plan. No byte has moved.

    Attributes:
        side: "source" or "target".
        storage: the storage's name.
        rank: the rank that was to bind it.
        expected, found: what the plan needs and what was given, in words.
        hint: a way out, or None.
    """

    def __init__(self, message: str, *, side: str = "", storage: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.side = side
        self.storage = storage


class SyncError(ReshardError):
    """A sync, or the making of a synchroniser, that failed: the same on every rank that could learn of it.

    Attributes:
        rank: the rank that failed first, as far as the ranks could find out.
        stage: where it failed, see `Stage`. In "bind" and "agree" the targets are as they were.
        cause: what that rank said, or how its end was seen, cut to a limit.
        version: the version that was to be moved; None when a synchroniser was being made.
    """

    rank: int

    def __init__(
        self,
        message: str,
        *,
        stage: Stage = "agree",
        cause: str = "",
        version: int | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.stage = stage
        self.cause = cause
        self.version = version


class BrokenError(ReshardError):
    """A synchroniser that cannot be used again: a connection was lost in an earlier sync, or it was closed.

    Targets that an earlier sync has torn stay torn until a new synchroniser, in a world of live ranks, commits.
    """
