"""What a sync did, as numbers."""

from __future__ import annotations

import enum
import resource
import sys
from dataclasses import dataclass


class State(enum.Enum):
    """What the targets of this rank hold."""

    NEW = "new"
    """Nothing was moved yet: the targets are as their owner made them."""
    COMMITTED = "committed"
    """All of one version, moved on every rank."""
    TORN = "torn"
    """A move began and did not end well: a mixture, not to be read."""
    IN_DOUBT = "in doubt"
    """This rank moved all of its share but could not learn whether all others did. Reads as not committed."""


@dataclass(frozen=True)
class Totals:
    """Bytes of all ranks together."""

    bytes_local: int
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, repr=False)
class Report:
    """What one sync did on this rank.

    Attributes:
        version: the version that is now committed.
        bytes_local: bytes of this rank's targets that were copied from its own sources.
        bytes_sent, bytes_received: bytes of its messages, in the type of the wire.
        rounds: rounds of the whole schedule; this rank may have had nothing to do in some.
        messages_direct, messages_staged: its messages that went straight from or to a tensor, and through staging.
        staging_peak_bytes: the most bytes of staging in use at one time, as the executor counts them.
        seconds_moving, seconds: of fills, copies and rounds alone; of the whole call, with all waiting.
        peak_process_bytes: the most memory that this process ever had resident, whoever used it.
        totals: bytes of all ranks.
    """

    version: int
    bytes_local: int
    bytes_sent: int
    bytes_received: int
    rounds: int
    messages_direct: int
    messages_staged: int
    staging_peak_bytes: int
    seconds_moving: float
    seconds: float
    peak_process_bytes: int
    totals: Totals

    def __repr__(self) -> str:
        return (
            f"<Report version {self.version}: {spoken(self.bytes_local)} local, {spoken(self.bytes_sent)} sent, "
            f"{spoken(self.bytes_received)} received in {self.rounds} rounds, staging peak "
            f"{spoken(self.staging_peak_bytes)}, {self.seconds:.3f} s ({self.seconds_moving:.3f} s moving), "
            f"process peak {spoken(self.peak_process_bytes)}>"
        )


def spoken(count_bytes: int) -> str:
    """A byte count as people read it."""
    if count_bytes < 1024:
        return f"{count_bytes} B"
    size, units = float(count_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.1f} {units[0]}"


def peak_process_bytes() -> int:
    """The most resident memory that this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
