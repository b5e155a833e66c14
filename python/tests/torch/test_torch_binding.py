"""Every tensor that cannot stand for a storage is refused before a byte moves, by name."""

from __future__ import annotations

import pytest
import torch

import reshard
from reshard.torch import BindError, State, SyncError, Synchroniser


def _plan() -> reshard.Plan:
    """One rank: 24 f32 behind 4 bytes of a mixed storage, and 8 bf16 alone."""
    layouts = []
    for side in ("source", "target"):
        builder = reshard.LayoutBuilder()
        wide = builder.parameter("wide", [4, 6], "f32")
        narrow = builder.parameter("narrow", [8], "bf16")
        mixed = builder.storage(0, f"{side} mixed", 100)
        builder.place(wide, builder.buffer(mixed, 4, "f32", 24))
        builder.place(narrow, builder.tensor(0, f"{side} plain", "bf16", 8))
        layouts.append(builder.build())
    return reshard.plan(*layouts)


def _tensors() -> tuple[dict, dict]:
    wide = torch.arange(25, dtype=torch.float32)
    source = {"source mixed": wide, "source plain": torch.arange(8).to(torch.bfloat16)}
    target = {
        "target mixed": torch.full((25,), torch.nan),
        "target plain": torch.full((8,), torch.nan).bfloat16(),
    }
    return source, target


def _shrunk(length_bytes: int) -> torch.Tensor:
    tensor = torch.zeros(25)
    tensor.untyped_storage().resize_(length_bytes)
    return tensor


def _misaligned() -> torch.Tensor:
    return torch.zeros(104, dtype=torch.uint8)[2:102]


class _Wrapped(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        raise AssertionError("a wrapped tensor was touched")


# Side, storage, how to make the tensor (None: left out), what is expected, what is found. Not tensors themselves:
# a test that fails would print them, and some have no memory to print.
FAULTS = [
    ("target", "target mixed", None, "a tensor of 100 bytes", "none under this name"),
    ("source", "source mixed", lambda: "text", "a tensor", "str"),
    ("source", "source mixed", lambda: torch.zeros(24), "100 bytes", "96 bytes"),
    ("target", "target mixed", lambda: torch.zeros(26), "100 bytes", "104 bytes"),
    ("source", "source plain", lambda: torch.zeros(8).half(), "torch.bfloat16", "torch.float16"),
    ("target", "target plain", lambda: torch.zeros(4), "torch.bfloat16", "torch.float32"),
    (
        "target",
        "target mixed",
        lambda: torch.zeros(5, 5).t(),
        "a contiguous tensor",
        "strides (1, 5) for shape",
    ),
    (
        "source",
        "source plain",
        lambda: torch.zeros(16).bfloat16()[::2],
        "a contiguous tensor",
        "strides (2,)",
    ),
    ("source", "source mixed", lambda: torch.zeros(1).expand(25), "a contiguous tensor", "strides (0,)"),
    ("source", "source mixed", lambda: torch.zeros(25, device="meta"), "a tensor on cpu", "one on meta"),
    ("target", "target mixed", lambda: _shrunk(0), "100 bytes of memory", "0 bytes"),
    ("source", "source mixed", lambda: _shrunk(60), "100 bytes of memory", "60 bytes"),
    ("target", "target mixed", _misaligned, "an address that is aligned for f32 at byte 4", "2 bytes past"),
    (
        "source",
        "source mixed",
        lambda: torch.zeros(25).to_sparse(),
        "a plain strided tensor",
        "torch.sparse_coo",
    ),
    (
        "source",
        "source mixed",
        lambda: torch.zeros(25).as_subclass(_Wrapped),
        "a plain strided tensor",
        "_Wrapped",
    ),
    (
        "target",
        "target mixed",
        lambda: torch._neg_view(torch.zeros(25)),
        "a tensor as it lies in memory",
        "negated",
    ),
]


@pytest.mark.parametrize("side, storage, make, expected, found", FAULTS)
def test_a_tensor_that_does_not_fit_is_refused(side, storage, make, expected, found):
    synchroniser = Synchroniser(_plan())
    sides = dict(zip(("source", "target"), _tensors(), strict=True))
    if make is None:
        del sides[side][storage]
    else:
        sides[side][storage] = make()
    with pytest.raises(SyncError) as caught:
        synchroniser.sync(**sides, version=1)
    error, cause = caught.value, caught.value.__cause__
    assert (error.rank, error.stage, error.version) == (0, "bind", 1)
    assert isinstance(cause, BindError) and isinstance(cause, reshard.ReshardError)
    assert (cause.side, cause.storage, cause.rank, cause.kind) == (side, storage, 0, "usage")
    assert cause.expected == expected and found in cause.found
    assert str(cause) in error.cause and storage in str(error)
    assert synchroniser.state is State.NEW
    # Nothing moved, and nothing is broken.
    untouched = _tensors()
    for name, target in sides["target"].items():
        if name != storage:
            assert torch.isnan(target).all()
    assert synchroniser.sync(*untouched, version=2).version == 2


def test_an_unknown_name_offers_the_nearest():
    source, target = _tensors()
    source["source mixd"] = source.pop("source mixed")
    with pytest.raises(SyncError, match=r"'source mixd'.*2 source storages.*did you mean 'source mixed'"):
        Synchroniser(_plan()).sync(source, target, version=1)
    with pytest.raises(SyncError, match="expected a mapping of storage names to tensors, found list"):
        Synchroniser(_plan()).sync(list(source.values()), target, version=1)


@pytest.mark.parametrize("version", ["7", 1.5, 0.0, None, 2**63])
def test_a_version_is_an_integer_of_64_bits(version):
    with pytest.raises(SyncError, match="expected a version that fits in 64 bits"):
        Synchroniser(_plan()).sync(*_tensors(), version=version)


def test_a_target_shares_no_byte_with_a_source_or_another_target():
    source, target = _tensors()
    memory = torch.zeros(26)
    with pytest.raises(SyncError, match="96 bytes that are also source storage 'source mixed'"):
        Synchroniser(_plan()).sync(
            {**source, "source mixed": memory[:25]}, {**target, "target mixed": memory[1:]}, version=1
        )
    lying_in = {**target, "target plain": target["target mixed"].view(torch.bfloat16)[4:12]}
    with pytest.raises(SyncError, match="16 bytes that are also target storage 'target mixed'"):
        Synchroniser(_plan()).sync(source, lying_in, version=1)
    with pytest.raises(
        SyncError, match=r"'target mixed'.* 16 bytes that are also source storage 'source plain'"
    ):
        inside = target["target mixed"].view(torch.bfloat16)[4:12]
        Synchroniser(_plan()).sync({**source, "source plain": inside}, target, version=1)
    # Neighbours in one memory are fine, and so are sources that share.
    shared = {**source, "source plain": source["source mixed"].view(torch.bfloat16)[2:10]}
    beside = {**target, "target mixed": memory[1:], "target plain": torch.zeros(8).bfloat16()}
    Synchroniser(_plan()).sync(shared, beside, version=1)
    assert torch.equal(beside["target plain"].view(torch.int32), shared["source plain"].view(torch.int32))


def test_bytes_and_any_shape_stand_for_a_storage():
    source, target = _tensors()
    flat = torch.full((100,), 255, dtype=torch.uint8)
    given = {"target mixed": flat.reshape(4, 25), "target plain": target["target plain"].reshape(2, 2, 2)}
    Synchroniser(_plan()).sync(
        {**source, "source plain": source["source plain"].view(torch.int8)}, given, version=1
    )
    assert torch.equal(flat[4:].view(torch.float32), torch.arange(1.0, 25.0))
    assert flat[:4].tolist() == [255] * 4
    assert torch.equal(target["target plain"], source["source plain"])


class _Shards(dict):
    """A mapping that knows whether its tensors still are their owner's."""

    is_stale = False

    def check(self) -> None:
        if self.is_stale:
            raise reshard.UsageError("the engine has moved 'source mixed': take its shards again")


def test_shards_are_asked_whether_they_are_stale():
    source, target = _tensors()
    shards = _Shards(source)
    synchroniser = Synchroniser(_plan())
    synchroniser.sync(shards, target, version=1)
    shards.is_stale = True
    target["target mixed"].fill_(torch.nan)
    with pytest.raises(SyncError, match="the engine has moved 'source mixed'") as caught:
        synchroniser.sync(shards, target, version=2)
    assert isinstance(caught.value.__cause__, reshard.UsageError)
    assert torch.isnan(target["target mixed"]).all()
    # The targets still hold what was committed, as far as the synchroniser is concerned.
    assert (synchroniser.state, synchroniser.version) == (State.COMMITTED, 1)


def test_a_storage_of_no_bytes_needs_no_tensor():
    layouts = []
    for _ in range(2):
        builder = reshard.LayoutBuilder()
        parameter = builder.parameter("w", [2], "f32")
        builder.tensor(0, "empty", "f32", 0)
        builder.place(parameter, builder.tensor(0, "full", "f32", 2))
        layouts.append(builder.build())
    target = torch.full((2,), torch.nan)
    synchroniser = Synchroniser(reshard.plan(*layouts))
    synchroniser.sync(
        {"full": torch.tensor([1.0, 2.0])}, {"full": target, "empty": torch.empty(0)}, version=1
    )
    assert target.tolist() == [1.0, 2.0]
