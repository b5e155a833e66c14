"""DeepSpeed's rollout interface over a trainer written by hand: two ranks that each keep a flat half."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tiny
import torch
from ranks import run_ranks

from reshard import Layout, LayoutBuilder, UsageError
from reshard.rollout import (
    Placement,
    RolloutError,
    RolloutOptions,
    SyncOptions,
    TensorParallelRollout,
    WeightSource,
)
from reshard.torch import State, SyncError
from reshard.torch.replicas import ReplicaError


class Halves:
    """A trainer of `holders` ranks: all parameters end to end in one flat vector, cut in equal runs; norms whole too.

    Every rank could compute every weight, so that tests know what a copy must hold.
    """

    def __init__(self, config: Any, rank: int, holders: int) -> None:
        self.config, self.rank, self.holders = config, rank, holders
        self.revision = 0
        self.calls: list[str] = []
        self.fail: str | None = None
        self.load(0)

    def load(self, seed: int) -> None:
        """New weights, in the tensors that were there before."""
        whole = dict(tiny.model(self.config, seed).named_parameters())
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in whole.values()])
        length = -(-len(flat) // self.holders)
        self.length, self.whole = length, whole
        part = torch.nn.functional.pad(flat, (0, length * self.holders - len(flat)))
        mine = part[self.rank * length : (self.rank + 1) * length].clone()
        self.tensors = {f"half.{self.revision}": mine, "norms": whole["model.norm.weight"].detach().clone()}

    def layout(self) -> Layout:
        self.calls.append("layout")
        if self.fail == "layout":
            raise RuntimeError("out of order")
        builder = LayoutBuilder()
        buffers = [
            builder.tensor(rank, f"half.{self.revision}", "f32", self.length) for rank in range(self.holders)
        ]
        norms = [builder.tensor(rank, "norms", "f32", 16) for rank in range(self.holders)]
        runs, at = [], 0
        for name, tensor in self.whole.items():
            number = builder.parameter(name, tensor.shape, "f32")
            shard = builder.shard(tensor.shape, tensor.shape, [((0,) * tensor.dim(), tensor.shape, 0, None)])
            if name == "model.norm.weight":
                runs += [(number, shard, buffer, 0, 0, 16) for buffer in norms]
                at += 16
                continue
            for rank, buffer in enumerate(buffers):
                first, last = max(at, rank * self.length), min(at + tensor.numel(), (rank + 1) * self.length)
                if first < last:
                    runs.append((number, shard, buffer, first - rank * self.length, first - at, last - first))
            at += tensor.numel()
        builder.place_runs(torch.tensor(runs, dtype=torch.int64).numpy())
        return builder.build()

    def shards(self) -> dict[str, torch.Tensor]:
        self.calls.append("shards")
        if self.fail == "shards":
            raise RuntimeError("gathered just now")
        return self.tensors

    def fingerprint(self) -> int:
        return self.revision

    @contextmanager
    def released(self) -> Iterator[None]:
        self.calls.append("released")
        yield
        self.calls.append("done")


def rollout_on(
    rank: int, placement: Placement, holders: int = 2, sync: SyncOptions | None = None, tied: bool = False
) -> tuple[TensorParallelRollout, Halves | None]:
    config = tiny.config(tied=tied)
    trainer = Halves(config, rank, holders) if rank < holders else None
    return TensorParallelRollout(trainer, config, placement, sync=sync), trainer


def check_copy(rollout: TensorParallelRollout, config: Any, seed: int) -> None:
    """The copy holds, bit for bit, the slices of the model of a seed."""
    assert rollout.model is not None
    team = rollout.model.team
    tied = config.tie_word_embeddings
    for name, tensor in tiny.model(config, seed).named_parameters():
        shard = tiny.shard_of(name, tensor, team.tp, team.index, tied)
        assert torch.equal(
            rollout.model.tensors()[name].view(torch.int32), shard.contiguous().view(torch.int32)
        ), name


def _story(rank: int, placement: Placement, tied: bool) -> None:
    from deepspeed.runtime.rollout import RolloutEngine, RolloutRequest, SamplingConfig

    rollout, trainer = rollout_on(rank, placement, tied=tied)
    config = tiny.config(tied=tied)
    assert isinstance(rollout, RolloutEngine)
    assert trainer is None or isinstance(trainer, WeightSource)
    request = RolloutRequest(*tiny.tokens())
    sampling = SamplingConfig(max_new_tokens=5, temperature=0.0)
    assert (rollout.state, rollout.version) == (State.NEW, None)
    with pytest.raises(RolloutError, match=r"is new|no copy runs"):
        rollout.generate(request, sampling)
    addresses = {}
    for step, seed in ((0, 0), (7, 1), (8, 2)):
        if trainer is not None:
            trainer.load(seed)
        rollout.sync_weights(step)
        assert (rollout.state, rollout.version) == (State.COMMITTED, step)
        if rollout.model is None:
            continue
        check_copy(rollout, config, seed)
        now = {name: tensor.data_ptr() for name, tensor in rollout.model.tensors().items()}
        assert addresses in ({}, now)
        addresses = now
        batch = rollout.generate(request, sampling)
        expected = tiny.model(config, seed).generate(
            request.prompt_ids, attention_mask=request.prompt_attention_mask,
            max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert torch.equal(batch.input_ids, expected)
        assert batch.response_start_idx.tolist() == [7, 7, 7]
        assert batch.attention_mask[:, 7:].all()
    assert rollout.weights.plans_made == 1
    assert trainer is None or trainer.calls == ["layout", *["released", "shards", "done"] * 3]
    rollout.shutdown()
    with pytest.raises(RolloutError, match="no copy runs"):
        rollout.generate(request, sampling)


@pytest.mark.parametrize(
    ("placement", "tied", "world"),
    [
        (Placement(4), False, 4),
        (Placement(2, copies=2), True, 4),
        (Placement(2, ranks=(3, 2)), False, 4),
        (Placement(3, ranks=(2, 3, 4)), False, 5),
        (Placement(1, copies=2), False, 2),
    ],
)
def test_a_copy_follows_its_trainer(placement: Placement, tied: bool, world: int) -> None:
    run_ranks(world, _story, placement, tied)


def _alone(rank: int) -> None:
    rollout, _ = rollout_on(0, Placement(1), holders=1)
    rollout.sync_weights(3)
    check_copy(rollout, tiny.config(), 0)


def test_a_world_of_one_needs_no_process_group() -> None:
    run_ranks(1, _alone, init=False)


def _changed(rank: int) -> tuple[int, list[str]]:
    rollout, trainer = rollout_on(rank, Placement(2), holders=2)
    assert trainer is not None
    rollout.sync_weights(0)
    # Only rank 1 says that its storage changed; rank 0 has to hear of it.
    trainer.revision = 1
    trainer.load(1)
    if rank == 0:
        trainer.fingerprint = lambda: 0  # type: ignore[method-assign]
    rollout.sync_weights(1)
    check_copy(rollout, tiny.config(), 1)
    rollout.replan()
    rollout.sync_weights(2)
    assert rollout.version == 2
    return rollout.weights.plans_made, trainer.calls


def test_a_source_that_changed_is_planned_anew_on_all_ranks() -> None:
    for plans, calls in run_ranks(2, _changed):
        assert plans == 3
        assert calls.count("layout") == 3


def _refusing(rank: int) -> None:
    rollout, trainer = rollout_on(rank, Placement(4))
    rollout.sync_weights(0)
    if rank == 1 and trainer is not None:
        trainer.fail = "shards"
    with pytest.raises(
        RolloutError, match="rank 1 could not give its weights: RuntimeError: gathered just now"
    ):
        rollout.sync_weights(1)
    assert (rollout.state, rollout.version) == (State.COMMITTED, 0)
    check_copy(rollout, tiny.config(), 0)
    if trainer is not None:
        trainer.fail = "layout" if rank == 0 else None
    with pytest.raises(
        RolloutError, match="rank 0 could not describe its weights: RuntimeError: out of order"
    ):
        rollout.replan()
    if trainer is not None:
        trainer.fail = None
        if rank == 0:
            trainer.tensors["norms"] = trainer.tensors["norms"][:15]
    with pytest.raises(SyncError, match="norms") as caught:
        rollout.sync_weights(2)
    assert (caught.value.rank, caught.value.stage) == (0, "bind")
    assert (rollout.state, rollout.version) == (State.COMMITTED, 0)
    if trainer is not None:
        trainer.load(5)
    rollout.sync_weights(2)
    check_copy(rollout, tiny.config(), 5)


def test_one_rank_that_cannot_stops_all_and_the_copy_stays() -> None:
    run_ranks(4, _refusing, timeout=60)


def _lost(rank: int, victim: int, where: str) -> tuple[str, str, int | None, float]:
    """A rank is killed while it gives its weights, or while replicas are compared."""
    rollout, trainer = rollout_on(
        rank, Placement(2), holders=3, sync=SyncOptions(timeout=20.0, replicas="always")
    )
    rollout.sync_weights(0)

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if rank == victim and trainer is not None:
        if where == "shards":
            trainer.shards = die  # type: ignore[method-assign,assignment]
        else:
            rollout.weights._replicas._hash = die  # type: ignore[method-assign,assignment]
    begin = time.monotonic()
    with pytest.raises(RolloutError) as caught:
        rollout.sync_weights(1)
    seconds = time.monotonic() - begin
    assert caught.value.rank == victim
    if rollout.model is not None:
        check_copy(rollout, tiny.config(), 0)
    with pytest.raises(RolloutError, match=f"rank {victim} could not give its weights: it was lost before"):
        rollout.sync_weights(2)
    return str(caught.value), rollout.state.value, rollout.version, seconds


@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize(
    ("where", "what"), [("shards", "give its weights"), ("hash", "compare its replicas")]
)
def test_a_rank_that_dies_before_the_move_is_named(victim: int, where: str, what: str) -> None:
    for rank, seen in enumerate(run_ranks(3, _lost, victim, where, may_die=[victim], timeout=60)):
        if rank != victim:
            words, state, version, seconds = seen
            assert words.startswith(f"rank {victim} could not {what}: ")
            assert (state, version) == ("committed", 0)
            # Seen at once, not when the time runs out.
            assert seconds < 15.0


def _drifted(rank: int, replicas: Any) -> str | None:
    rollout, trainer = rollout_on(rank, Placement(2), sync=SyncOptions(replicas=replicas))
    if rank == 1 and trainer is not None:
        trainer.tensors["norms"][3] += 1
    try:
        rollout.sync_weights(0)
    except ReplicaError as error:
        assert rollout.version is None
        return f"{error.parameter} {error.rank} {error.differences[0]}"
    return None


def test_drifted_replicas_are_named_before_anything_moves() -> None:
    expected = "model.norm.weight 1 model.norm.weight[0:16] on ranks 0 | 1"
    assert run_ranks(2, _drifted, "once") == [expected] * 2
    assert run_ranks(2, _drifted, "never") == [None] * 2


def _drifts_later(rank: int, replicas: Any) -> bool:
    rollout, trainer = rollout_on(rank, Placement(2), sync=SyncOptions(replicas=replicas))
    rollout.sync_weights(0)
    if rank == 1 and trainer is not None:
        trainer.tensors["norms"][3] += 1
    try:
        rollout.sync_weights(1)
    except ReplicaError:
        return True
    return False


def test_replicas_are_compared_once_or_always() -> None:
    assert run_ranks(2, _drifts_later, "once") == [False] * 2
    assert run_ranks(2, _drifts_later, "always") == [True] * 2


def _torn(rank: int) -> None:
    from deepspeed.runtime.rollout import RolloutRequest, SamplingConfig

    rollout, _ = rollout_on(rank, Placement(2))
    rollout.sync_weights(0)
    synchroniser = rollout.weights._synchroniser
    assert synchroniser is not None
    whole_sync = synchroniser.sync

    def stopped(stage: str, done: int, total: int) -> None:
        if rank == 1 and stage == "move":
            raise RuntimeError("stopped in the middle")

    synchroniser.sync = lambda **given: whole_sync(**given, progress=stopped)  # type: ignore[method-assign]
    with pytest.raises(SyncError, match="stopped in the middle"):
        rollout.sync_weights(1)
    assert (rollout.state, rollout.version) == (State.TORN, None)
    with pytest.raises(RolloutError, match="is torn") as caught:
        rollout.generate(RolloutRequest(*tiny.tokens()), SamplingConfig(max_new_tokens=2))
    assert caught.value.found == "torn"
    del synchroniser.sync
    rollout.sync_weights(2)
    assert rollout.version == 2
    check_copy(rollout, tiny.config(), 0)


def test_a_torn_copy_does_not_generate() -> None:
    run_ranks(2, _torn)


def _cast(rank: int) -> None:
    config = tiny.config()
    options = RolloutOptions(dtype="bf16")
    with pytest.raises(RolloutError, match=r"could not make a plan.*cast"):
        TensorParallelRollout(Halves(config, rank, 2), config, Placement(2), options)
    rollout = TensorParallelRollout(
        Halves(config, rank, 2), config, Placement(2), options, SyncOptions(cast=True)
    )
    rollout.sync_weights(0)
    assert rollout.model is not None
    for name, tensor in tiny.model(config).named_parameters():
        shard = tiny.shard_of(name, tensor, 2, rank).to(torch.bfloat16)
        assert torch.equal(
            rollout.model.tensors()[name].view(torch.int16), shard.contiguous().view(torch.int16)
        ), name


def test_a_copy_of_another_type_needs_permission() -> None:
    run_ranks(2, _cast)


def _unfit(rank: int) -> None:
    config = tiny.config()
    good = Halves(config, rank, 2)
    with pytest.raises(
        RolloutError, match="rank 1 could not use its source: UsageError: weights come from a DeepSpeed"
    ):
        TensorParallelRollout(object() if rank == 1 else good, config, Placement(2))
    other = config if rank == 0 else tiny.config(tied=True, layers=3)
    with pytest.raises(
        RolloutError, match=r"rank 1 could not build its copy: UsageError: the trainer has no parameter"
    ):
        TensorParallelRollout(good, other, Placement(2))
    for smaller, name in (
        (tiny.config(bias=False), "layers.0.self_attn.q_proj.bias"),
        (tiny.config(layers=1), "layers.1."),
    ):
        with pytest.raises(RolloutError, match=f"no place for the trainer's parameter model.{name}"):
            TensorParallelRollout(good, smaller, Placement(2))
    with pytest.raises(RolloutError, match=r"rank 0 could not make a plan: PlanError"):
        TensorParallelRollout(good, tiny.config(intermediate_size=20), Placement(2))


def test_what_fits_not_is_refused_on_all_ranks() -> None:
    run_ranks(2, _unfit, timeout=60)


def _asks_wrongly(rank: int, tied: bool) -> None:
    from deepspeed.runtime.rollout import RolloutRequest, SamplingConfig

    rollout, _ = rollout_on(rank, Placement(2), tied=tied)
    rollout.sync_weights(0)
    ids, mask = tiny.tokens()

    def ask(ids: Any = ids, mask: Any = mask, **options: Any) -> Any:
        return rollout.generate(RolloutRequest(ids, mask), SamplingConfig(max_new_tokens=2, **options))

    ones = torch.ones_like(ids)
    for words, arguments, options in [
        ("left-padded: the last token of row 1", (ids.flip(1), mask.flip(1)), {}),
        ("left-padded: the last token of row 0", (ids, torch.zeros_like(mask)), {}),
        ("integers from 0 to 32, found torch.int64 from 1 to 33", (torch.where(mask == 0, 33, 1), ones), {}),
        ("integers from 0 to 32, found torch.int64 from -1", (-ones, ones), {}),
        ("integers from 0 to 32, found torch.float32", (ids.float(), mask), {}),
        (r"at least one row and one token, found \(0, 7\)", (ids[:0], mask[:0]), {}),
        (r"at least one row and one token, found \(3, 0\)", (ids[:, :0], mask[:, :0]), {}),
        ("at least one sample", (ids, mask), {"n_samples_per_prompt": 0}),
        ("expected numbers", (ids, mask), {"temperature": float("nan")}),
    ]:
        # Whoever asks for it, all ranks of the copy are told.
        for who in (0, 1):
            with pytest.raises(UsageError, match=words):
                ask(*arguments, **options) if rank == who else ask()
    with pytest.raises(RolloutError, match="continuous batching, asked for on rank 1") as caught:
        ask(continuous_batch_size=2) if rank == 1 else ask()
    assert caught.value.rank == 1
    assert ask(temperature=0.0).input_ids.shape == (3, 9)


@pytest.mark.parametrize("tied", [False, True])
def test_what_cannot_be_answered_is_refused_on_all_ranks_of_a_copy(tied: bool) -> None:
    run_ranks(2, _asks_wrongly, tied, timeout=60)


def _shut(rank: int) -> None:
    groups = torch.distributed.distributed_c10d._world.pg_map
    before = len(groups)
    for _ in range(2):
        rollout, _ = rollout_on(rank, Placement(2))
        rollout.sync_weights(0)
        assert len(groups) > before
        rollout.shutdown()
        rollout.shutdown()
        assert len(groups) == before
    for action in (lambda: rollout.sync_weights(1), rollout.replan):
        with pytest.raises(RolloutError, match=f"the rollout on rank {rank} was shut down"):
            action()


def test_a_rollout_that_is_shut_down_leaves_no_group_behind() -> None:
    run_ranks(3, _shut, timeout=60)
