"""What every rank does in the tests of this folder; each story returns what it saw, which the parent asserts.

    engine ──► sync ──► compare ──► train ──► sync ──► compare ──► sync from the tensor-parallel neighbour ──► compare

Comparisons are returned by all ranks before any is asserted, so that no rank waits for one that gave up. One fork of
ranks runs many cases.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import deepspeed
import oracle
import tiny
import torch
import torch.distributed as dist
from deepspeed.runtime.rollout import RolloutRequest, SamplingConfig
from engines import (
    DTYPES,
    Case,
    engine_config,
    forget_groups,
    full_shapes,
    make_engine,
    make_model,
    qwen3_config,
    step,
)

from reshard import Layout
from reshard.rollout import (
    DeepSpeedSource,
    Placement,
    TensorParallelRollout,
    WeightSync,
    linear_cuts,
    near_even,
    rollout_layout,
)
from reshard.torch import State
from reshard.torch.replicas import ReplicaError

SHORT = {"bf16": "bf16", "fp32": "f32", "fp16": "f16"}


@dataclass(frozen=True)
class Story:
    """A trainer, and the copies that follow it."""

    case: Case
    placement: Placement

    def __str__(self) -> str:
        case = self.case
        init = f"-init-{case.init}" if case.init else ""
        extra = "-tied" * case.tied + "-bf16-optimizer" * case.bf16_optimizer + "-groups" * case.two_groups
        extra += f"-offload-{case.offload}" * bool(case.offload) + "-frozen" * bool(case.frozen)
        extra += "-round-robin" * case.round_robin
        place = f"tp{self.placement.tp}x{self.placement.copies}"
        return f"{case.model}-tp{case.tp}-zero{case.stage}{init}-{case.dtype}{extra}-to-{place}"


@dataclass
class Seen:
    """What one rank saw."""

    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)
    swapped: list[str] | None = None
    moved: list[str] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)
    plans_made: int = 0
    born_as_nan: bool = False
    bytes_held: int = 0
    bytes_received: int = 0
    seconds: float = 0.0


class Neighbour:
    """A trainer that hands out the storage of its tensor-parallel neighbour, under its own name."""

    def __init__(self, source: DeepSpeedSource, tp: int) -> None:
        self._source, self._tp = source, tp

    def layout(self) -> Layout:
        return self._source.layout()

    def released(self) -> Any:
        return self._source.released()

    def shards(self) -> Mapping[str, torch.Tensor]:
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(
            everyone, {name: shard.clone() for name, shard in self._source.shards().items()}
        )
        return everyone[dist.get_rank() ^ 1]


def target_layout(case: Case, placement: Placement) -> Layout:
    """The layout of the copies, by hand for the small module."""
    if case.model == "qwen3":
        return rollout_layout(qwen3_config(case), placement)
    widths = near_even(18, placement.tp)
    cuts = {"up.weight": (0, widths), "up.bias": (0, widths), "down.weight": (1, widths)}
    return linear_cuts(full_shapes(case), cuts, placement.tp, SHORT[case.dtype]).layout(placement)


def born(case: Case, placement: Placement) -> dict[str, torch.Tensor]:
    """This rank's tensors of the copy, all NaN."""
    slot = placement.slot(dist.get_rank())
    if slot is None:
        return {}
    whole = {name: torch.empty(shape, device="meta") for name, shape in full_shapes(case).items()}
    shapes = {
        name: shard.shape for name, shard in oracle.expected(case, whole, placement.tp, slot[1]).items()
    }
    return {name: torch.full(shape, torch.nan, dtype=DTYPES[case.dtype]) for name, shape in shapes.items()}


def tell(rank: int, stories: list[Story]) -> list[Seen]:
    """Runs stories one after another in one world."""
    return [_one(rank, story) for story in stories]


def _one(rank: int, story: Story) -> Seen:
    begin = time.monotonic()
    case, placement, seen = story.case, story.placement, Seen()
    engine = make_engine(case)
    tensors = born(case, placement)
    seen.born_as_nan = all(bool(tensor.isnan().all()) for tensor in tensors.values())
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    source, layout = DeepSpeedSource(engine), target_layout(case, placement)
    sync = WeightSync(source, layout, tensors)
    slot = placement.slot(rank)

    def compare() -> list[str]:
        full = oracle.truth(engine)
        return oracle.differing(tensors, oracle.expected(case, full, placement.tp, slot[1]) if slot else {})

    seen.bytes_received = sync.sync(0).bytes_received
    seen.before = compare()
    seen.versions.append(sync.version)
    held = {name: tensor.clone() for name, tensor in tensors.items()}
    step(engine, case)
    sync.sync(5)
    seen.after = compare()
    seen.versions.append(sync.version)
    seen.trained = [name for name in oracle.differing(tensors, held) if tensors[name].numel()]
    if case.tp == 2 and case.model == "small":
        swapped = WeightSync(Neighbour(source, case.tp), layout, tensors)
        swapped.sync(6)
        seen.swapped = compare()
        swapped.close()
    seen.moved = [name for name, tensor in tensors.items() if tensor.data_ptr() != addresses[name]]
    seen.plans_made = sync.plans_made
    seen.bytes_held = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    sync.close()
    seen.seconds = time.monotonic() - begin
    return seen


@dataclass(frozen=True)
class Drift:
    """What a rank was told of replicas that drifted."""

    parameters: tuple[str, ...]
    camps: tuple[tuple[int, ...], ...]
    state: str
    is_untouched: bool


def drift(rank: int, cases: list[Case]) -> list[Drift | None]:
    """Models whose tensor-parallel ranks were seeded differently, as torch and transformers make them."""
    return [_drift(rank, case) for case in cases]


def _drift(rank: int, case: Case) -> Drift | None:
    forget_groups()
    torch.manual_seed(100 + rank)
    model = make_model(case).to(DTYPES[case.dtype])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, config=engine_config(case), optimizer=optimizer)
    placement = Placement(4)
    tensors = born(case, placement)
    sync = WeightSync(DeepSpeedSource(engine), target_layout(case, placement), tensors)
    try:
        sync.sync(0)
    except ReplicaError as error:
        names = tuple(dict.fromkeys(difference.region.parameter for difference in error.differences))
        is_untouched = all(bool(tensor.isnan().all()) for tensor in tensors.values())
        return Drift(names, error.differences[0].camps, sync.state.value, is_untouched)
    finally:
        sync.close()
    assert sync.state is State.COMMITTED
    return None


@dataclass
class Generated:
    """Responses of a copy, and of the whole model that DeepSpeed's own weights make."""

    ids: torch.Tensor
    expected: torch.Tensor
    version: int | None


def generate(rank: int, case: Case, placement: Placement) -> list[Generated]:
    """A trainer's loop with a rollout in it: sync, generate for prompts of this data-parallel rank, train."""
    engine = make_engine(case)
    rollout = TensorParallelRollout(engine, qwen3_config(case), placement)
    prompts, mask = tiny.tokens(rows=2, length=6, seed=rank // case.tp)
    seen = []
    for number in range(2):
        rollout.sync_weights(number)
        sampling = SamplingConfig(max_new_tokens=5, temperature=0.0, n_samples_per_prompt=2)
        batch = rollout.generate(RolloutRequest(prompts, mask), sampling)
        whole = make_model(case).to(DTYPES[case.dtype]).eval()
        with torch.no_grad():
            full = oracle.truth(engine)
            for name, parameter in whole.named_parameters():
                parameter.copy_(full[name])
            expected = whole.generate(
                prompts.repeat_interleave(2, 0), attention_mask=mask.repeat_interleave(2, 0),
                max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        seen.append(Generated(batch.input_ids, expected, rollout.version))
        step(engine, case, number)
    rollout.shutdown()
    return seen


def losses(rank: int, case: Case) -> tuple[list[float], list[float]]:
    """The losses of three steps without, and with, a sync before each."""
    return _losses(case, False), _losses(case, True)


def _losses(case: Case, is_synced: bool) -> list[float]:
    engine = make_engine(case)
    seen = []
    if not is_synced:
        return [step(engine, case, number) for number in range(3)]
    placement = Placement(4)
    with closing(
        WeightSync(DeepSpeedSource(engine), target_layout(case, placement), born(case, placement))
    ) as sync:
        for number in range(3):
            sync.sync(number)
            seen.append(step(engine, case, number))
    return seen
