"""Records on the wire, and the verdicts that are drawn from them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

import reshard
from reshard.torch import BindError, SyncError
from reshard.torch.ballot import (
    CAUSE_BYTES_MAX,
    RECORD_BYTES,
    Digest,
    Failure,
    Record,
    judge_readiness,
    judge_votes,
)
from reshard.torch.sizes import size_bytes

WELL = Record(Digest(2**64 - 1, 2, 3, 4), 7, None, True, 10, 20, 30)


@pytest.mark.parametrize(
    "failure",
    [None, Failure(0, "bind", "", True), Failure(2**31 - 1, "commit", "é" * (CAUSE_BYTES_MAX // 2), False)],
)
@pytest.mark.parametrize("version", [0, -(2**63), 2**63 - 1])
def test_records_survive_the_wire(failure, version):
    record = replace(WELL, failure=failure, version=version, sound=failure is None, is_vote=failure is None)
    data = record.to_bytes()
    assert len(data) == RECORD_BYTES
    assert Record.from_bytes(data) == record


def test_a_long_cause_is_cut_at_a_character():
    cause = Record.from_bytes(
        replace(WELL, failure=Failure(1, "move", "x" + "é" * 2000)).to_bytes()
    ).failure.cause
    assert cause.endswith("é...") and CAUSE_BYTES_MAX - 4 <= len(cause.encode()) <= CAUSE_BYTES_MAX


def _says(failure):
    return replace(WELL, failure=failure, sound=failure is None or failure.certain)


def test_the_own_word_of_a_rank_counts_before_silence_and_silence_before_what_others_saw():
    own, silent = Failure(3, "move", "out of memory", True), Failure(2, "move", "it stopped answering")
    seen = Failure(1, "move", "it closed its connection")
    assert judge_votes(WELL, [WELL, _says(seen), silent, _says(own)]).failure == own
    assert judge_votes(WELL, [WELL, _says(seen), silent, WELL]).failure == silent
    assert judge_votes(WELL, [WELL, _says(seen), WELL, WELL]).failure == seen
    assert [
        judge_votes(WELL, answers).sound
        for answers in ([WELL, WELL], [WELL, silent], [WELL, _says(seen)], [WELL, _says(own)])
    ] == [True, False, False, True]


def test_the_verdict_on_votes_sums_bytes():
    verdict = judge_votes(WELL, [WELL, replace(WELL, bytes_sent=5), replace(WELL, bytes_local=1)])
    assert (verdict.bytes_sent, verdict.bytes_received, verdict.bytes_local) == (25, 60, 61)


def _with_digest(**other):
    return replace(WELL, digest=replace(WELL.digest, **other))


@pytest.mark.parametrize(
    "other, what, one, two",
    [
        (_with_digest(plan=0xABC), "the plans", "ffffffffffffffff", "abc"),
        (_with_digest(schedule=9), "the schedules", "2", "9"),
        (_with_digest(staging=1024), "the staging limits", "3", "1024"),
        (_with_digest(code=5), "the versions of reshard", "4", "5"),
        (replace(WELL, version=8), "the versions to move", "7", "8"),
    ],
)
def test_a_disagreement_names_the_ranks(other, what, one, two):
    text = f"{what} differ: {one} on ranks 0, 1, 3, {two} on rank 2"
    verdict = judge_readiness(WELL, [WELL, WELL, other, WELL])
    assert verdict.failure == Failure(2, "agree", text, certain=True) and verdict.sound
    assert judge_readiness(WELL, [WELL, WELL, WELL, WELL]).failure is None


def test_a_rank_that_begins_another_sync_has_not_voted():
    vote = replace(WELL, is_vote=True)
    verdict = judge_votes(vote, [vote, replace(WELL, version=8), vote])
    assert verdict.failure == Failure(1, "commit", "it begins a sync of version 8 meanwhile", certain=True)
    verdict = judge_readiness(WELL, [WELL, WELL, vote])
    assert verdict.failure == Failure(2, "agree", "it votes on a sync of version 7 meanwhile", certain=True)
    assert judge_votes(vote, [vote] * 3).failure is None


def test_many_ranks_are_counted_not_listed():
    other = replace(WELL, version=8)
    verdict = judge_readiness(WELL, [WELL] * 40 + [other])
    assert verdict.failure.rank == 40
    assert "7 on 40 ranks (0, 1, 2, 3, 4, 5, 6, 7, ...), 8 on rank 40" in verdict.failure.cause


def test_errors_survive_a_pickle():
    bind = BindError(
        "text", side="source", storage="w", rank=1, expected="a", found="b", hint="c", kind="usage"
    )
    sync = SyncError("text", rank=3, stage="move", cause="gone", version=9)
    for error in (bind, sync):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == "text" and vars(again) == vars(error)


def test_sizes_are_written_as_people_write_them():
    texts = {"0": 0, "12": 12, "1KiB": 1024, "256 MiB": 256 << 20, "2GiB": 2 << 30, "3KB": 3000}
    texts |= {"1MB": 10**6, "1GB": 10**9}
    assert {text: size_bytes(text) for text in texts} == texts
    assert size_bytes(77) == 77
    for wrong in ("", "MiB", "1.5GiB", "1 TiB", "-1", -1, 2.0, None, True):
        with pytest.raises(reshard.UsageError, match="expected a size like"):
            size_bytes(wrong)
