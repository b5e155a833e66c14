"""Checkpoints that real DeepSpeed engines write, and what each says, by a path that shares no code with `reshard`.

save("round robin", folder) --> folder/latest, folder/step/...pt      as DeepSpeed writes them
                            --> Truth(weights, fp32, exp_avg, ...)    full tensors, by DeepSpeed's own accessors
                                                                      and plain collectives
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from engines import Case, consolidated, full_state, make_engine, step
from ranks import run_ranks

TAG = "step2"
STEPS = 2


@dataclass(frozen=True)
class Setting:
    """An engine, and how many ranks run it."""

    case: Case
    world: int = 4


@dataclass
class Truth:
    """Full tensors, by what is kept (`weights`, `fp32`, `exp_avg`, ...) and parameter."""

    kept: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)


_QWEN = Case(model="qwen3", vocabulary=17)

SETTINGS = {
    "stage 0": Setting(Case(stage=0)),
    "stage 0 fp32": Setting(Case(stage=0, dtype="fp32")),
    "stage 1": Setting(Case(stage=1)),
    "stage 1 fp16": Setting(Case(stage=1, dtype="fp16")),
    "stage 1 frozen": Setting(Case(stage=1, frozen=("up.bias", "down.weight"), buffers=True)),
    "stage 1 tied head": Setting(_QWEN.but(tied=True)),
    "stage 2": Setting(Case(stage=2, dtype="fp32", two_groups=True)),
    "stage 2 frozen, tied, buffers": Setting(
        Case(stage=2, frozen=("up.bias", "down.weight"), tied=True, buffers=True, empty=True)
    ),
    "stage 2 uneven": Setting(Case(stage=2, two_groups=True, fused=True), world=6),
    "stage 3": Setting(Case(stage=3)),
    "stage 3 uneven": Setting(Case(stage=3, fused=True), world=6),
    "stage 3 sub-groups": Setting(Case(stage=3, sub_group_elements=30, two_groups=True)),
    "stage 3 frozen, tied, buffers": Setting(
        Case(
            stage=3,
            frozen=("up.bias", "down.weight"),
            tied=True,
            buffers=True,
            sub_group_elements=30,
        )
    ),
    "zero.Init": Setting(Case(stage=3, init="world", two_groups=True)),
    "zero.Init, DeepSpeed's optimizer": Setting(Case(stage=3, init="world", optimizer="config")),
    "zero.Init, frozen": Setting(Case(stage=3, init="world", frozen=("norm.weight", "up.weight"))),
    "zero.Init over dp": Setting(Case(stage=3, init="dp")),
    "round robin": Setting(Case(stage=2, dtype="fp32", round_robin=True)),
    "round robin, aligned": Setting(Case(stage=1, dtype="fp32", round_robin=True, alignment=True)),
    "aligned": Setting(Case(stage=1, alignment=True)),
    "aligned fp32": Setting(Case(stage=2, dtype="fp32", alignment=True, two_groups=True)),
    "bf16 optimizer": Setting(Case(bf16_optimizer=True, two_groups=True)),
    "more ranks than heads": Setting(_QWEN.but(tp=4, stage=2), world=8),
    "more data ranks than elements": Setting(Case(tp=1, stage=1, bias=False), world=7),
    "momentum": Setting(Case(stage=1, optimizer="momentum")),
    "momentum, stage 3": Setting(Case(stage=3, optimizer="momentum")),
    "no tensor parallelism": Setting(Case(tp=1, stage=3, tied=True), world=3),
}


def save(name: str, folder: Path) -> Truth:
    """Trains `SETTINGS[name]` for two steps, saves it under `folder` and says what it holds."""
    setting = SETTINGS[name]
    return run_ranks(setting.world, _saved, setting.case, str(folder), timeout=240.0)[0]


def _saved(rank: int, case: Case, folder: str) -> Truth | None:
    engine = _trained(case)
    engine.save_checkpoint(folder, tag=TAG)
    truth = _truth(engine, case)
    if case.round_robin:
        # DeepSpeed's accessors look at the wrong place under this option. The same training without it holds the
        # same values, and its weights show that it does.
        twin = _truth(_trained(case.but(round_robin=False)), case)
        for parameter, value in truth.kept["weights"].items():
            assert torch.equal(value, twin.kept["weights"][parameter]), parameter
        truth = twin
    return truth if rank == 0 else None


def _trained(case: Case) -> Any:
    engine = make_engine(case)
    for number in range(STEPS):
        step(engine, case, number)
    return engine


def _truth(engine: Any, case: Case) -> Truth:
    truth = Truth()
    if case.stage > 0:
        for state in ("fp32", *_states(case)):
            truth.kept[state] = full_state(engine, case, state)
    truth.kept["weights"] = dict(consolidated(engine) or {})
    truth.buffers = {
        name: value.detach().clone()
        for name, value in engine.module.state_dict().items()
        if name in dict(engine.module.named_buffers())
    }
    first: dict[int, str] = {}
    for name, parameter in engine.module.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        if known != name:
            truth.aliases[name] = known
    return truth


def _states(case: Case) -> tuple[str, ...]:
    return ("momentum_buffer",) if case.optimizer == "momentum" else ("exp_avg", "exp_avg_sq")


def setting_text(name: str) -> str:
    """How a checkpoint was made, for the notes beside it."""
    setting = SETTINGS[name]
    changed = {
        one.name: getattr(setting.case, one.name)
        for one in dataclasses.fields(Case)
        if getattr(setting.case, one.name) != one.default
    }
    return f"{setting.world} ranks, {changed}"
