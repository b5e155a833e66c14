"""Syncs that go well: every byte against an enumeration, in place, again and again."""

from __future__ import annotations

import pytest
import torch
from ranks import run_ranks
from torch_matrix import born, matrix_plan, source_shard, target_shard
from torch_random_layouts import random_case

from reshard.torch import BrokenError, State, SyncError, Synchroniser


def _sync_case(rank, case, plan, staging):
    synchroniser = Synchroniser(plan, staging=staging, timeout=30.0)
    targets = case.born_bytes(rank)
    report = synchroniser.sync(case.source_bytes(rank), targets, version=5)
    assert (synchroniser.state, synchroniser.version) == (State.COMMITTED, 5)
    return targets, report, synchroniser.staging_bytes


@pytest.mark.parametrize("seed", range(24))
def test_random_layouts_against_an_enumeration_of_every_byte(seed):
    case = random_case(seed, cast=seed % 3 == 2)
    plan, staging = case.plan(), [128, 256, 4096][seed % 3]
    results = run_ranks(case.world, _sync_case, case, plan, staging, timeout=60.0)
    for rank, (targets, report, allocated) in enumerate(results):
        for name, expected in case.expected_bytes(rank).items():
            assert torch.equal(targets[name], expected), (seed, rank, name)
        assert report.staging_peak_bytes <= allocated <= staging
        assert report.rounds == plan.schedule(staging).rounds
    # What all sent is what all received, and what the plan says of it.
    reports = [report for _, report, _ in results]
    sent = sum(report.bytes_sent for report in reports)
    assert sent == sum(report.bytes_received for report in reports) == plan.statistics.bytes_sent
    assert {report.totals.bytes_sent for report in reports} == {sent}
    assert sum(report.bytes_local for report in reports) == plan.statistics.bytes_local


def _sync_matrix(rank, plan, world, target, staging):
    synchroniser = Synchroniser(plan, staging=staging, timeout=30.0)
    shard = born(rank, world, target)
    report = synchroniser.sync({"shard": source_shard(rank, world)}, {"shard": shard}, version=0)
    return shard, report


def test_contiguous_messages_go_straight_from_and_into_the_tensors():
    plan = matrix_plan(3, "shifted")
    for rank, (shard, report) in enumerate(run_ranks(3, _sync_matrix, plan, 3, "shifted", 2048)):
        assert torch.equal(shard, target_shard(rank, 3, "shifted"))
        # 1,152 bytes to and from one peer in messages of 512 bytes at most.
        assert report.messages_direct == 6
        assert (report.messages_staged, report.staging_peak_bytes) == (0, 0)


def test_strided_targets_are_unpacked_from_staging():
    plan = matrix_plan(3)
    for rank, (shard, report) in enumerate(run_ranks(3, _sync_matrix, plan, 3, "columns", "2KiB")):
        assert torch.equal(shard, target_shard(rank, 3))
        # Rows of a source are cut by columns, and whole rows of a target are contiguous: packed here, direct there.
        assert report.messages_staged >= 2
        assert report.messages_direct + report.messages_staged >= 4
        assert 0 < report.staging_peak_bytes <= 2048


def _sync_often(rank, plan, world):
    synchroniser = Synchroniser(plan, staging=1024, timeout=30.0)
    slots = [
        slot.message(1).data_ptr() for slot in (*synchroniser._staging.send, *synchroniser._staging.receive)
    ]
    peaks = set()
    shard = torch.nn.Parameter(born(rank, world))
    address, gradient = shard.data_ptr(), torch.ones_like(shard)
    shard.grad = gradient
    for version in range(6):
        counter = shard._version
        report = synchroniser.sync(
            {"shard": source_shard(rank, world, version).requires_grad_()}, {"shard": shard}, version=version
        )
        peaks.add(report.staging_peak_bytes)
        assert torch.equal(shard, target_shard(rank, world, version=version))
        assert shard.data_ptr() == address
        assert shard._version > counter
        assert shard.requires_grad and shard.is_leaf and shard.grad is gradient
    assert slots == [
        slot.message(1).data_ptr() for slot in (*synchroniser._staging.send, *synchroniser._staging.receive)
    ]
    return len(peaks), synchroniser.staging_bytes


def test_repeated_syncs_reuse_staging_and_write_in_place():
    for peaks, staging_bytes in run_ranks(3, _sync_often, matrix_plan(3), 3):
        assert peaks == 1
        assert staging_bytes <= 1024


def _sync_moved(rank, plan, world):
    synchroniser = Synchroniser(plan, staging=1024, timeout=30.0)
    alive = []
    for version, shape in enumerate([(-1,), (4, -1), (-1, COLUMNS_BYTES)]):
        source = source_shard(rank, world, version)
        target = born(rank, world)
        given = target.view(torch.uint8).reshape(shape) if version == 2 else target.reshape(shape)
        synchroniser.sync({"shard": source.reshape(shape)}, {"shard": given}, version=version)
        assert torch.equal(target, target_shard(rank, world, version=version))
        alive += [source, target]
    return len({tensor.data_ptr() for tensor in alive})


COLUMNS_BYTES = 32


def test_tensors_may_move_and_change_shape_between_calls():
    assert run_ranks(2, _sync_moved, matrix_plan(2), 2) == [6, 6]


def _sync_inference(rank, plan, world):
    with torch.inference_mode():
        shard = born(rank, world)
    synchroniser = Synchroniser(plan, timeout=30.0)
    synchroniser.sync({"shard": source_shard(rank, world)}, {"shard": shard}, version=1)
    return torch.equal(shard, target_shard(rank, world)) and shard.is_inference()


def test_targets_made_in_inference_mode_are_written():
    assert run_ranks(2, _sync_inference, matrix_plan(2), 2) == [True, True]


def _backward_after_sync(rank, plan, world):
    synchroniser = Synchroniser(plan, timeout=30.0)
    shard = born(rank, world, "shifted").zero_().requires_grad_()
    loss = (shard * shard).sum()
    synchroniser.sync({"shard": source_shard(rank, world)}, {"shard": shard}, version=1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    return True


def test_a_backward_through_the_old_value_of_a_target_is_refused():
    # Also where every message goes straight into the tensor, behind autograd's back.
    assert run_ranks(2, _backward_after_sync, matrix_plan(2, "shifted"), 2) == [True, True]


def _sync_subgroup(rank, plan):
    import torch.distributed as dist

    group = dist.new_group([1, 3])
    if rank not in (1, 3):
        return True
    member = dist.get_rank(group)
    synchroniser = Synchroniser(plan, timeout=30.0, group=group)
    shard = born(member, 2)
    synchroniser.sync({"shard": source_shard(member, 2)}, {"shard": shard}, version=1)
    return torch.equal(shard, target_shard(member, 2))


def test_a_group_of_some_ranks_numbers_them_as_the_plan_does():
    assert run_ranks(4, _sync_subgroup, matrix_plan(2)) == [True] * 4


def _sync_with_spare_rank(rank, plan):
    synchroniser = Synchroniser(plan, timeout=30.0)
    if rank == 2:
        report = synchroniser.sync(version=1)
        return report.bytes_sent == 0 and report.totals.bytes_sent > 0
    shard = born(rank, 2)
    synchroniser.sync({"shard": source_shard(rank, 2)}, {"shard": shard}, version=1)
    return torch.equal(shard, target_shard(rank, 2))


def test_ranks_beyond_the_plan_only_agree():
    assert run_ranks(3, _sync_with_spare_rank, matrix_plan(2)) == [True] * 3


def test_a_world_of_one_needs_no_process_group():
    case = next(case for case in map(random_case, range(100)) if case.world > 1)
    plan = matrix_plan(1)
    shard = born(0, 1)
    synchroniser = Synchroniser(plan)
    assert synchroniser.state is State.NEW and synchroniser.version is None
    report = synchroniser.sync({"shard": source_shard(0, 1)}, {"shard": shard}, version=7)
    assert torch.equal(shard, target_shard(0, 1))
    assert (report.bytes_local, report.bytes_sent, report.rounds) == (12 * 8 * 4, 0, 0)
    assert synchroniser.state is State.COMMITTED and synchroniser.version == 7
    assert "version 7: 384 B local" in repr(report)
    assert repr(synchroniser) == "<Synchroniser rank 0 of 1, cpu, committed 7>"
    with pytest.raises(SyncError, match=r"the plan has \d ranks, the world 1"):
        Synchroniser(case.plan())


def test_a_closed_synchroniser_refuses():
    with Synchroniser(matrix_plan(1)) as synchroniser:
        pass
    with pytest.raises(BrokenError, match="it was closed"):
        synchroniser.sync(version=1)
