"""Errors: one class a room, with the facts as attributes.

Every error says in words what is wrong; the same facts stand in attributes, so that a program need not read the words.
Facts that an error does not have are None.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AffineMapError",
    "LayoutError",
    "PlanError",
    "ReshardError",
    "ScheduleError",
    "UsageError",
    "VerifyError",
]


class ReshardError(Exception):
    """Base of all errors of this package.

    Attributes:
        kind: "invalid" (something contradicts itself: stop), "unsupported" (legal, but not expressible here),
            "over budget" (a limit ran out), or "usage" (a wrong argument).
        parameter: name of the parameter.
        rank: global rank of the process that it is about.
        expected: what should have been there.
        found: what was there.
        hint: a way out.
    """

    kind: str | None
    parameter: str | None
    rank: int | None
    expected: Any
    found: Any
    hint: str | None

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        parameter: str | None = None,
        rank: int | None = None,
        expected: Any = None,
        found: Any = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.parameter = parameter
        self.rank = rank
        self.expected = expected
        self.found = found
        self.hint = hint


class UsageError(ReshardError, ValueError):
    """A wrong argument."""


class LayoutError(ReshardError):
    """A layout that cannot be built; `findings` lists everything that is wrong with it."""

    findings: list[str]

    def __init__(self, message: str, *, findings: list[str] | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.findings = findings or [message]


class AffineMapError(LayoutError):
    """An affine map that contradicts itself or its parameter."""


class PlanError(ReshardError):
    """Two layouts between which there is no plan."""


class ScheduleError(ReshardError):
    """A plan that cannot be scheduled under a staging limit."""


class VerifyError(ReshardError):
    """A plan that is wrong for two layouts."""
