"""What the ranks tell each other, and the verdict that the leader draws from it.

    | plan | schedule | staging | code | version | sent received local | sound | failure: rank stage certain text |
    every rank ──record──► leader: judge ──verdict (a record too)──► every rank       1,024 bytes each

A failure is *certain* if its rank says it of itself, and an observation if a peer saw a connection end. A connection
also ends because a third rank died; so a rank's own word counts first, then silence, then what others saw.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .errors import STAGES, Stage

RECORD_BYTES = 1024
"""The size of a record on the wire, whatever it says."""

_HEAD = struct.Struct("<QQQQqQQQBBiBBH")
CAUSE_BYTES_MAX = RECORD_BYTES - _HEAD.size
"""The longest cause that travels, in bytes of UTF-8."""


@dataclass(frozen=True)
class Failure:
    """That a rank failed, where and why."""

    rank: int
    stage: Stage
    cause: str
    certain: bool = False


@dataclass(frozen=True)
class Digest:
    """What must be equal on all ranks for their schedules to fit: three fingerprints and the staging limit."""

    plan: int
    schedule: int
    staging: int
    code: int


@dataclass(frozen=True)
class Record:
    """One rank's word, or the verdict: `failure` is None where all is well.

    `sound` is False once a connection was lost. `is_vote` tells what is said after a move from what is said before one:
    a rank that left a sync halfway and begins another has not voted. The counts are bytes: of one rank in its vote, of
    all ranks in the verdict on the votes.
    """

    digest: Digest
    version: int
    failure: Failure | None = None
    sound: bool = True
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_local: int = 0
    is_vote: bool = False

    def to_bytes(self) -> bytes:
        """The record as `RECORD_BYTES` bytes; a long cause is cut at a character."""
        digest, failure = self.digest, self.failure
        text = shortened(failure.cause).encode() if failure else b""
        head = _HEAD.pack(
            digest.plan, digest.schedule, digest.staging, digest.code,
            self.version, self.bytes_sent, self.bytes_received, self.bytes_local, self.sound,
            self.is_vote,
            failure.rank if failure else -1,
            STAGES.index(failure.stage) if failure else 0,
            failure.certain if failure else False,
            len(text),
        )  # fmt: skip
        return (head + text).ljust(RECORD_BYTES, b"\0")

    @staticmethod
    def from_bytes(data: bytes) -> Record:
        """The record that `to_bytes` wrote."""
        (
            plan,
            schedule,
            staging,
            code,
            version,
            sent,
            received,
            local,
            sound,
            is_vote,
            rank,
            stage,
            certain,
            length,
        ) = _HEAD.unpack_from(data)
        failure = None
        if rank >= 0:
            text = data[_HEAD.size :][:length].decode(errors="replace")
            failure = Failure(rank, STAGES[stage], text, bool(certain))
        digest = Digest(plan, schedule, staging, code)
        return Record(digest, version, failure, bool(sound), sent, received, local, bool(is_vote))


def shortened(cause: str) -> str:
    """`cause` cut to `CAUSE_BYTES_MAX` bytes, at a character, with an ellipsis where something was cut."""
    data = cause.encode(errors="replace")
    if len(data) <= CAUSE_BYTES_MAX:
        return data.decode()
    return data[: CAUSE_BYTES_MAX - 3].decode(errors="ignore") + "..."


Answers = Sequence["Record | Failure"]
"""By rank: what it said, or how its silence was seen."""


def judge_readiness(own: Record, answers: Answers) -> Record:
    """The verdict before a move: all are there, hold the same plan, mean the same version and are ready."""
    failure = _first(answers) or _out_of_step(own, answers, "agree") or _disagreement(answers)
    return replace(own, failure=failure, sound=_is_sound(answers))


def judge_votes(own: Record, answers: Answers) -> Record:
    """The verdict after a move: all have moved and verified, or who failed; with the bytes of all ranks summed."""
    records = [answer for answer in answers if isinstance(answer, Record)]
    return replace(
        own,
        failure=_first(answers) or _out_of_step(own, answers, "commit"),
        sound=_is_sound(answers),
        bytes_sent=sum(record.bytes_sent for record in records),
        bytes_received=sum(record.bytes_received for record in records),
        bytes_local=sum(record.bytes_local for record in records),
    )


def _is_sound(answers: Answers) -> bool:
    return all(isinstance(answer, Record) and answer.sound for answer in answers)


def _first(answers: Answers) -> Failure | None:
    """The failure to name: what a rank says of itself, else a rank that is silent, else what one saw of another."""
    told = [answer.failure for answer in answers if isinstance(answer, Record) and answer.failure]
    silent = [answer for answer in answers if isinstance(answer, Failure)]
    ordered = [failure for failure in told if failure.certain] + silent + told
    return ordered[0] if ordered else None


def _out_of_step(own: Record, answers: Answers, stage: Stage) -> Failure | None:
    """Who is in another sync, or at another place in it, than the leader."""
    for rank, answer in enumerate(answers):
        if isinstance(answer, Record) and answer.is_vote != own.is_vote:
            told = "votes on" if answer.is_vote else "begins"
            return Failure(
                rank, stage, f"it {told} a sync of version {answer.version} meanwhile", certain=True
            )
    return None


def _disagreement(answers: Answers) -> Failure | None:
    """Who holds something else than the others: for each field of the record the ranks by value."""
    fields: list[tuple[str, Callable[[Record], int], str]] = [
        ("the plans", lambda record: record.digest.plan, "x"),
        # Another limit makes another schedule, and is the one to name.
        ("the staging limits", lambda record: record.digest.staging, "d"),
        ("the schedules", lambda record: record.digest.schedule, "x"),
        ("the versions of reshard", lambda record: record.digest.code, "x"),
        ("the versions to move", lambda record: record.version, "d"),
    ]
    for name, value, form in fields:
        holders: dict[int, list[int]] = {}
        for rank, answer in enumerate(answers):
            if isinstance(answer, Record):
                holders.setdefault(value(answer), []).append(rank)
        if len(holders) > 1:
            # Named is the first rank outside the largest camp.
            camps = sorted(holders.items(), key=lambda item: (-len(item[1]), item[1]))
            told = ", ".join(f"{value:{form}} on {_ranks(ranks)}" for value, ranks in camps)
            return Failure(camps[1][1][0], "agree", f"{name} differ: {told}", certain=True)
    return None


def _ranks(ranks: list[int]) -> str:
    if len(ranks) > 8:
        return f"{len(ranks)} ranks ({', '.join(map(str, ranks[:8]))}, ...)"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
