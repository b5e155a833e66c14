"""Failures of one rank: every other rank raises, naming it and the stage, in time; nothing says committed.

progress:  bind  move 0  move 1 ... move n  commit        a rank fails just there, by an exception, SIGKILL, SIGSTOP
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from ranks import Died, run_ranks
from torch_matrix import born, matrix_plan, source_shard, target_shard

from reshard import UsageError
from reshard.torch import BindError, BrokenError, State, SyncError, Synchroniser

WORLD = 3
STAGING = 512


class Trouble(Exception):
    """What a test lets a rank raise."""


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def _at(point, action):
    """A progress function that acts at its `point`-th call, counted from 0; the last call is -1."""
    calls = []

    def progress(stage, done, total):
        calls.append(stage)
        is_last = stage == "commit"
        if len(calls) - 1 == point or (point == -1 and is_last):
            action()

    return progress


def _raise(error):
    def action():
        raise error

    return action


def _attempt(synchroniser, rank, world, progress=None, version=1, target="columns", **given):
    """What came of a sync: (rank, stage, cause, cause's class, seconds) of the error or None; target; state."""
    shard = given.pop("shard", None)
    shard = born(rank, world, target) if shard is None else shard
    begin, caught = time.monotonic(), None
    try:
        synchroniser.sync(
            {"shard": source_shard(rank, world, version)},
            {"shard": shard},
            version=version,
            progress=progress,
        )
    except SyncError as error:
        caught = (error.rank, error.stage, error.cause, type(error.__cause__), time.monotonic() - begin)
    return caught, shard, synchroniser.state


def _fail_and_sync_again(rank, plan, world, culprit, point, error):
    synchroniser = Synchroniser(plan, staging=STAGING, timeout=20.0)
    progress = _at(point, _raise(error)) if rank == culprit else None
    first = _attempt(synchroniser, rank, world, progress)
    second = _attempt(synchroniser, rank, world, version=2)
    assert second[0] is None, second
    assert torch.equal(second[1], target_shard(rank, world, version=2))
    assert synchroniser.version == 2
    return first


@pytest.mark.parametrize("culprit", range(WORLD))
@pytest.mark.parametrize("point, stage", [(0, "bind"), (1, "move"), (2, "move"), (4, "move"), (-1, "commit")])
def test_an_exception_in_one_rank_is_everybodys_and_a_later_sync_works(culprit, point, stage):
    plan = matrix_plan(WORLD)
    results = run_ranks(
        WORLD, _fail_and_sync_again, plan, WORLD, culprit, point, Trouble("no luck"), timeout=40.0
    )
    for rank, (caught, shard, state) in enumerate(results):
        assert caught[:3] == (culprit, stage, "Trouble: no luck")
        assert caught[3] is (Trouble if rank == culprit else type(None))
        assert caught[4] < 10.0
        assert state is (State.NEW if stage == "bind" else State.TORN)
        if stage == "bind":
            assert torch.isnan(shard).all()


def _bind_error_of_one(rank, plan, world):
    synchroniser = Synchroniser(plan, staging=STAGING, timeout=20.0)
    wrong = torch.zeros(7) if rank == 1 else None
    return _attempt(synchroniser, rank, world, shard=wrong), _attempt(synchroniser, rank, world)[0]


def test_a_tensor_that_does_not_fit_one_rank_stops_all_before_a_byte_moves():
    for rank, ((caught, shard, state), second) in enumerate(
        run_ranks(WORLD, _bind_error_of_one, matrix_plan(WORLD), WORLD)
    ):
        assert caught[:2] == (1, "bind")
        assert "target storage 'shard' of rank 1: expected 1152 bytes, found 28 bytes" in caught[2]
        assert caught[3] is (BindError if rank == 1 else type(None))
        assert state is State.NEW and (rank == 1 or torch.isnan(shard).all())
        assert second is None


def _taking_fails(rank, plan, world):
    synchroniser = Synchroniser(plan, staging=STAGING, timeout=20.0)
    shard, modes = born(rank, world), []

    def take():
        modes.append(torch.is_inference_mode_enabled())
        if rank == 1 and len(modes) == 1:
            raise Trouble("the shards are gone")
        return {"shard": source_shard(rank, world)}

    with pytest.raises(SyncError) as caught:
        synchroniser.sync(take, {"shard": shard}, version=1)
    failed = caught.value.rank, caught.value.stage, caught.value.cause, synchroniser.state
    untouched = bool(torch.isnan(shard).all())
    synchroniser.sync(take, lambda: {"shard": shard}, version=2)
    return failed, untouched, torch.equal(shard, target_shard(rank, world)), modes


def test_shards_that_one_rank_cannot_take_stop_all():
    """A function gives the shards inside the sync, in the mode in which the caller would have taken them."""
    for failed, untouched, arrived, modes in run_ranks(WORLD, _taking_fails, matrix_plan(WORLD), WORLD):
        assert failed == (1, "bind", "Trouble: the shards are gone", State.NEW)
        assert (untouched, arrived, modes) == (True, True, [False, False])


def _verify_fails(rank, plan, world):
    synchroniser = Synchroniser(plan, staging=STAGING, timeout=20.0)
    shard, seen = born(rank, world), []

    def verify():
        seen.append(torch.equal(shard, target_shard(rank, world)))
        if rank == 1:
            raise Trouble("the norm is off")

    with pytest.raises(SyncError) as caught:
        synchroniser.sync({"shard": source_shard(rank, world)}, {"shard": shard}, version=1, verify=verify)
    failed = caught.value.rank, caught.value.stage, caught.value.cause, synchroniser.state
    synchroniser.sync({"shard": source_shard(rank, world)}, {"shard": shard}, version=2, verify=lambda: None)
    return failed, seen, synchroniser.state


def test_what_a_caller_verifies_on_one_rank_decides_on_all():
    for failed, seen, state in run_ranks(WORLD, _verify_fails, matrix_plan(WORLD), WORLD):
        assert failed == (1, "verify", "Trouble: the norm is off", State.TORN)
        # It saw targets that were written.
        assert seen == [True]
        assert state is State.COMMITTED


def _interrupted(rank, plan, world, error):
    synchroniser = Synchroniser(plan, staging=STAGING, timeout=20.0)
    try:
        # The interrupt is a real signal, while a round is being prepared: noted, and raised at the next safe point.
        action = _interrupt if isinstance(error, KeyboardInterrupt) else _raise(error)
        caught = _attempt(synchroniser, rank, world, _at(2, action) if rank == 1 else None)[0]
    except BaseException as raised:
        caught = type(raised)
    return caught, synchroniser.state, signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_an_interrupt_is_told_to_the_others_and_raised_again(error):
    results = run_ranks(WORLD, _interrupted, matrix_plan(WORLD), WORLD, error)
    assert [state for _, state, _ in results] == [State.TORN] * WORLD
    assert all(is_restored for _, _, is_restored in results)
    assert results[1][0] is type(error)
    for rank in (0, 2):
        assert results[rank][0][:2] == (1, "move")
        assert type(error).__name__ in results[rank][0][2]


def _disagree(rank, plans, world, staging, versions):
    try:
        synchroniser = Synchroniser(plans[rank], staging=staging[rank], timeout=20.0)
    except SyncError as error:
        return error.rank, error.stage, error.cause
    caught, shard, state = _attempt(synchroniser, rank, world, version=versions[rank])
    assert state is State.NEW and torch.isnan(shard).all()
    return caught[:3]


def test_ranks_that_hold_different_plans_limits_or_versions_are_named():
    plan, other = matrix_plan(WORLD), matrix_plan(WORLD, "shifted")
    same, limits = [1, 1, 1], [STAGING] * WORLD
    cases = [
        ([plan, plan, other], limits, same, "the plans differ"),
        ([plan] * 3, [512, 512, 1024], same, "the staging limits differ: 512 on ranks 0, 1, 1024 on rank 2"),
        ([plan] * 3, limits, [4, 4, 5], "the versions to move differ: 4 on ranks 0, 1, 5 on rank 2"),
    ]
    for plans, staging, versions, text in cases:
        results = run_ranks(WORLD, _disagree, plans, WORLD, staging, versions)
        assert len(set(results)) == 1
        rank, stage, cause = results[0]
        assert (rank, stage) == (2, "agree") and cause.startswith(text)


def _unmakeable(rank, plan, staging, backend=None):
    with pytest.raises(SyncError) as caught:
        Synchroniser(plan, staging=staging[rank], timeout=20.0, backend=backend if rank else None)
    return caught.value.rank, caught.value.cause, type(caught.value.__cause__).__name__


def test_a_synchroniser_that_one_rank_cannot_make_is_made_nowhere():
    results = run_ranks(2, _unmakeable, matrix_plan(2), [512, "plenty"])
    assert results[0] == (
        1,
        "UsageError: expected a size like 268435456 or 256MiB, found 'plenty'",
        "NoneType",
    )
    assert results[1][:2] == results[0][:2] and results[1][2] == "UsageError"
    for rank, cause, name in run_ranks(2, _unmakeable, matrix_plan(2), [8, 8]):
        assert rank == 0 and "staging" in cause and name == "ScheduleError"
    for rank, cause, _ in run_ranks(2, _unmakeable, matrix_plan(2), [512, 512], "pigeon"):
        assert (rank, cause) == (1, "UsageError: this torch has no backend 'pigeon'")


def _not_all_come(rank, plan):
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(SyncError) as caught:
        Synchroniser(plan, staging=STAGING, timeout=2.0)
    return caught.value.rank, caught.value.stage, caught.value.cause, time.monotonic() - begin


def test_a_rank_that_never_comes_ends_the_making_in_time():
    results = run_ranks(WORLD, _not_all_come, matrix_plan(WORLD), may_die=[2])
    for rank in (0, 1):
        found, stage, cause, seconds = results[rank]
        assert (found, stage) == (rank, "agree") and cause.startswith(
            "it could not connect to all others within 2 s"
        )
        assert seconds < 6.0


def _killed(rank, plan, world, victim, point, timeout):
    synchroniser = Synchroniser(plan, staging=STAGING, timeout=timeout)
    caught, shard, state = _attempt(synchroniser, rank, world, _at(point, _kill) if rank == victim else None)
    begin = time.monotonic()
    with pytest.raises(BrokenError, match=f"rank {victim} was lost.*make a new one"):
        synchroniser.sync({}, {}, version=2)
    return caught, shard, state, time.monotonic() - begin


def _points(world):
    choice = random.Random(20)
    rounds = matrix_plan(world).schedule(STAGING).rounds
    # Before the bind, before any of the rounds, after the last one, and before the vote.
    points = [0, 1, rounds, -1] + [choice.randint(1, rounds) for _ in range(16)]
    return [(choice.randrange(world), point) for point in points]


@pytest.mark.parametrize("victim, point", _points(WORLD))
def test_survivors_of_a_kill_at_any_point_name_the_victim(victim, point):
    results = run_ranks(
        WORLD, _killed, matrix_plan(WORLD), WORLD, victim, point, 20.0, may_die=[victim], timeout=40.0
    )
    for rank, result in enumerate(results):
        if rank == victim:
            assert result == Died(victim, -signal.SIGKILL)
            continue
        caught, shard, state, seconds_again = result
        assert caught[0] == victim, caught
        assert caught[1] in {0: ("agree",), -1: ("move", "commit")}.get(point, ("move", "commit")), caught
        assert "closed its connection" in caught[2]
        # A death is seen at once, not when the time runs out.
        assert caught[4] < 15.0 and seconds_again < 15.0
        if point == 0:
            assert state is State.NEW and torch.isnan(shard).all()
        else:
            assert state in (State.TORN, State.IN_DOUBT)


def _killed_any_time(rank, plan, world, victim, delay, timeout):
    synchroniser = Synchroniser(plan, staging=STAGING, timeout=timeout)
    if rank == victim:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    states = []
    for version in range(1, 2000):
        caught, shard, state = _attempt(synchroniser, rank, world, version=version)
        if caught is None:
            assert torch.equal(shard, target_shard(rank, world, version=version))
        else:
            return version, caught, state
    raise AssertionError(f"no sync failed: {states}")


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_in_a_run_of_syncs_never_leaves_ranks_of_different_minds(seed):
    choice = random.Random(seed)
    victim, delay = choice.randrange(WORLD), choice.uniform(0.02, 0.3)
    results = run_ranks(
        WORLD,
        _killed_any_time,
        matrix_plan(WORLD),
        WORLD,
        victim,
        delay,
        20.0,
        may_die=[victim],
        timeout=60.0,
    )
    survivors = [result for rank, result in enumerate(results) if rank != victim]
    for version, caught, state in survivors:
        assert caught[0] == victim and caught[4] < 15.0
        assert (state is State.COMMITTED) == (caught[1] == "agree" and version > 1)
    versions = sorted(version for version, _, _ in survivors)
    if versions[0] != versions[1]:
        # One learnt of a commit that the other did not: then the other is in doubt, never torn.
        assert versions[1] == versions[0] + 1
        assert [state for version, _, state in survivors if version == versions[0]] == [State.IN_DOUBT]


def _stopped(rank, plan, world, victim, point, timeout):
    synchroniser = Synchroniser(plan, staging=STAGING, timeout=timeout)

    def stop():
        subprocess.Popen(["sh", "-c", f"sleep {4 * timeout}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)

    return _attempt(synchroniser, rank, world, _at(point, stop) if rank == victim else None)


@pytest.mark.parametrize("victim, point", [(0, 0), (1, 0), (0, 2), (2, 2), (1, -1)])
def test_a_rank_that_stops_answering_is_a_timeout(victim, point):
    timeout = 1.5
    results = run_ranks(WORLD, _stopped, matrix_plan(WORLD), WORLD, victim, point, timeout, timeout=40.0)
    for rank, (caught, _, state) in enumerate(results):
        assert caught is not None, rank
        assert state is not State.COMMITTED
        if rank != victim:
            assert caught[0] == victim, caught
            assert caught[1] in (("agree",) if point == 0 else ("move", "commit"))
            # Agreement and move each have the timeout, a follower a quarter of it more; the first takes no time here.
            assert caught[4] < timeout * 1.25 + 3.0


def _meddled_with(rank, plan, world, culprit, point, meddle):
    synchroniser = Synchroniser(plan, staging=STAGING, timeout=20.0)

    def another():
        synchroniser.sync(
            {"shard": source_shard(rank, world, 7)}, {"shard": born(rank, world, "columns")}, version=7
        )

    def in_a_thread():
        with ThreadPoolExecutor() as pool:
            pool.submit(another).result()

    action = {"close": synchroniser.close, "sync": another, "thread": in_a_thread}[meddle]
    progress = _at(point, action) if rank == culprit else None
    first = _attempt(synchroniser, rank, world, progress)
    second = _attempt(synchroniser, rank, world, version=2)
    return first, second, torch.equal(second[1], target_shard(rank, world, version=2))


@pytest.mark.parametrize("meddle", ["close", "sync", "thread"])
@pytest.mark.parametrize("culprit, point", [(0, 2), (1, 2), (0, -1), (1, -1)])
def test_neither_a_second_sync_nor_an_end_within_a_sync(culprit, point, meddle):
    for rank, (first, second, is_right) in enumerate(
        run_ranks(WORLD, _meddled_with, matrix_plan(WORLD), WORLD, culprit, point, meddle)
    ):
        (named, _, cause, kind, _), _, state = first
        assert (named, state) == (culprit, State.TORN)
        assert cause.startswith("UsageError: a sync is going on")
        assert kind is (UsageError if rank == culprit else type(None))
        assert second[0] is None and is_right, "the synchroniser is as good as before"


class Unspeakable(Exception):
    """What cannot even be told."""

    def __str__(self):
        raise ValueError


@pytest.mark.parametrize("point", [0, 2, -1])
def test_an_error_without_words_is_told_all_the_same(point):
    results = run_ranks(WORLD, _fail_and_sync_again, matrix_plan(WORLD), WORLD, 1, point, Unspeakable())
    for rank, (caught, *_) in enumerate(results):
        assert caught[:3] == (1, caught[1], "Unspeakable: its text cannot be told (ValueError)")
        assert caught[3] is (Unspeakable if rank == 1 else type(None))


def _outsider(rank):
    group = torch.distributed.new_group([0, 1])
    if rank == 2:
        with pytest.raises(UsageError, match="rank 2 of the world is no member of the group"):
            Synchroniser(matrix_plan(2), group=group)


def test_who_is_not_of_the_group_is_refused():
    run_ranks(3, _outsider)


def _versions(rank, plan, world):
    synchroniser, version = Synchroniser(plan, staging=STAGING), torch.tensor(3)
    shards = {"shard": source_shard(rank, world, 1)}, {"shard": born(rank, world, "columns")}
    report = synchroniser.sync(*shards, version=version)
    version += 1
    return [(type(found), found) for found in (synchroniser.version, report.version)]


def test_a_version_is_kept_as_a_number_of_its_own():
    assert run_ranks(2, _versions, matrix_plan(2), 2) == [[(int, 3)] * 2] * 2


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), None, "soon"])
def test_a_timeout_that_is_none_is_refused(timeout):
    with pytest.raises(UsageError, match="expected a timeout of some seconds, found"):
        Synchroniser(matrix_plan(1), timeout=timeout)


def _fresh_world(rank, plan, world):
    synchroniser = Synchroniser(plan, staging=STAGING, timeout=20.0)
    caught, shard, state = _attempt(synchroniser, rank, world)
    return (
        caught is None
        and state is State.COMMITTED
        and torch.equal(shard, target_shard(rank, world, version=1))
    )


def test_a_new_synchroniser_in_a_fresh_world_works_after_a_failure():
    plan = matrix_plan(WORLD)
    run_ranks(WORLD, _killed, plan, WORLD, 1, 2, 20.0, may_die=[1])
    assert run_ranks(WORLD, _fresh_world, plan, WORLD) == [True] * WORLD


def _closed(rank, plan, world):
    first = Synchroniser(plan, staging=STAGING, timeout=20.0)
    with first, Synchroniser(plan, staging=1024, timeout=20.0) as second:
        results = [_attempt(synchroniser, rank, world)[0] for synchroniser in (first, second, first)]
    third = Synchroniser(plan, staging=STAGING, timeout=20.0)
    return [*results, _attempt(third, rank, world)[0]]


def test_synchronisers_live_side_by_side_and_after_each_other():
    assert run_ranks(WORLD, _closed, matrix_plan(WORLD), WORLD) == [[None] * 4] * WORLD
