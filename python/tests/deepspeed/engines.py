"""Real DeepSpeed engines in miniature, and what a path that shares no code with `reshard` says they hold.

    Case(model="small", tp=2, stage=3, dtype="bf16") --make_engine--> a live engine on every rank of the world
                                                     --step---------> the same after a training step
    consolidated(engine) -> {name: full tensor} on rank 0: DeepSpeed's own gather over ZeRO and tensor parallelism
    full_state(engine, "exp_avg") -> the same of an optimizer state, gathered over ZeRO by DeepSpeed and over TP plainly

Every parameter is filled with values drawn from a generator seeded by its name, so that neighbours differ and every
rank agrees, whichever way the model was built (`drift` makes the ranks disagree).
"""

from __future__ import annotations

import os
import zlib
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import functorch.compile
import torch
import torch._dynamo
import torch._inductor.compile_fx
import torch.distributed
import transformers.models.qwen3.modeling_qwen3
from deepspeed.runtime.zero.partition_parameters import GatheredParameters
from deepspeed.utils import groups, logger

# The first engine of a process imports the compiler: 5 s that forked ranks inherit when their parent has paid for it.
assert functorch.compile and torch._dynamo and torch._inductor.compile_fx and transformers.models.qwen3
# Its shared-memory collective would be compiled at the first start; gloo needs no such thing.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
logger.setLevel("ERROR")

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
WIDTH, INNER = 7, 18
# Layers that hold several matrices side by side, and how wide each of those is.
FUSED = {"qkv": (12, 6, 6), "merge": (16, 8)}


@dataclass(frozen=True)
class Case:
    """How an engine is made. The world's size over `tp` is the data-parallel degree."""

    model: str = "small"  # or "qwen3"
    tp: int = 2
    stage: int = 1
    dtype: str = "bf16"
    init: str | None = None  # zero.Init: "world" (plain) or "dp" (with the data-parallel group)
    # "client": AdamW, "momentum": SGD, both made by the caller; "config": made by DeepSpeed; None: no optimizer
    optimizer: str | None = "client"
    two_groups: bool = False  # matrices and vectors apart
    frozen: tuple[str, ...] = ()  # names of parameters that take no gradient
    tied: bool = False
    fused: bool = False  # small: adds a fused q/k/v pair of layers, cut per sub-parameter
    empty: bool = False  # small: adds a parameter without elements
    buffers: bool = (
        False  # small: adds a table and a number that are no parameters, and one that is not saved
    )
    bias: bool = True
    layers: int = 1
    heads: int = 4
    kv_heads: int = 2
    vocabulary: int = 33
    sub_group_elements: int | None = None
    round_robin: bool = False
    alignment: bool = False
    bf16_optimizer: bool = False
    offload: str | None = None  # "optimizer", "parameters" (stage 3), "both"
    persistence_elements: int | None = (
        None  # None: DeepSpeed's default, under which everything small persists
    )
    hpz: int = 1
    drift: bool = False
    learning_rate: float = 1e-2

    def but(self, **changes: Any) -> Case:
        return replace(self, **changes)


class Small(torch.nn.Module):
    """A norm, `up` cut by rows and `down` by columns: 18 over 4 is 5, 5, 4, 4."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        if case.fused:
            self.qkv = torch.nn.Linear(WIDTH, 4 * 6, bias=case.bias)
            self.merge = torch.nn.Linear(4 * 6, WIDTH, bias=case.bias)
        self.up = torch.nn.Linear(WIDTH, INNER, bias=case.bias)
        self.down = torch.nn.Linear(INNER, WIDTH, bias=case.bias)
        if case.tied:
            self.norm_again = self.norm
        if case.empty:
            self.nothing = torch.nn.Parameter(torch.empty(0, 3))
        if case.buffers:
            self.register_buffer("table", torch.arange(10, dtype=torch.float32).reshape(2, 5) / 7)
            self.register_buffer("count", torch.tensor(41, dtype=torch.int64))
            self.register_buffer("passing", torch.zeros(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        if hasattr(self, "qkv"):
            x = x + self.merge(self.qkv(x))
        return self.down(torch.relu(self.up(x)))


def make_model(case: Case) -> torch.nn.Module:
    if case.model == "small":
        return Small(case)
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM(qwen3_config(case))
    model.config.use_cache = False
    return model


def qwen3_config(case: Case) -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(
        hidden_size=4 * case.heads, intermediate_size=INNER, num_hidden_layers=case.layers, head_dim=6,
        num_attention_heads=case.heads, num_key_value_heads=case.kv_heads, vocab_size=case.vocabulary,
        attention_bias=case.bias, tie_word_embeddings=case.tied, max_position_embeddings=32,
        torch_dtype=DTYPES[case.dtype],
    )  # fmt: skip


def full_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of the model before anything is cut, tied ones under their first name."""
    with torch.device("meta"):
        return {name: tuple(parameter.shape) for name, parameter in make_model(case).named_parameters()}


def forget_groups() -> None:
    """Lets a second engine of another TP size be made in this process: DeepSpeed would keep the first one's groups."""
    for name in (
        "_TENSOR_MODEL_PARALLEL_GROUP",
        "_DATA_PARALLEL_GROUP",
        "_MODEL_PARALLEL_GROUP",
        "mesh_device",
        "mpu",
    ):
        setattr(groups, name, None)


def make_engine(case: Case) -> Any:
    """A live engine of `case` on every rank; torch.distributed is initialised. Collective over the world."""
    forget_groups()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    config = engine_config(case)
    model = _built(case, config)
    _fill(model, case)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in case.frozen)
    arguments: dict[str, Any] = {}
    if case.optimizer == "client":
        arguments["optimizer"] = torch.optim.AdamW(_groups(model, case), lr=case.learning_rate)
    elif case.optimizer == "momentum":
        arguments["optimizer"] = torch.optim.SGD(_groups(model, case), lr=case.learning_rate, momentum=0.9)
    elif case.optimizer == "config":
        arguments["model_parameters"] = _groups(model, case)
    engine, *_ = deepspeed.initialize(model=model, config=config, **arguments)
    return engine


def _built(case: Case, config: dict[str, Any]) -> torch.nn.Module:
    if case.init is None:
        return make_model(case).to(DTYPES[case.dtype])
    group = None
    if case.init == "dp" and case.tp > 1:
        groups._init_tp_mesh_device(tensor_model_parallel_size=case.tp)
        group = groups.get_data_parallel_group()
    with deepspeed.zero.Init(data_parallel_group=group, config_dict_or_path=config, dtype=DTYPES[case.dtype]):
        return make_model(case)


def _fill(model: torch.nn.Module, case: Case) -> None:
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        if case.drift:
            generator.manual_seed(zlib.crc32(name.encode()) + torch.distributed.get_rank())
        with GatheredParameters([parameter], modifier_rank=0) if case.init else nullcontext():
            values = 0.3 * torch.randn(parameter.shape, generator=generator) + ("norm" in name)
            with torch.no_grad():
                parameter.copy_(values)


def _groups(model: torch.nn.Module, case: Case) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    if not case.two_groups:
        return [{"params": parameters}]
    axes = [len(getattr(parameter, "ds_shape", parameter.shape)) for parameter in parameters]
    matrices = [parameter for parameter, count in zip(parameters, axes, strict=True) if count > 1]
    vectors = [parameter for parameter, count in zip(parameters, axes, strict=True) if count <= 1]
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]


def engine_config(case: Case) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": case.stage,
        "reduce_bucket_size": 4096,
        "round_robin_gradients": case.round_robin,
        "parameter_alignment": case.alignment,
    }
    if case.stage == 3:
        zero["zero_hpz_partition_size"] = case.hpz
        if case.sub_group_elements is not None:
            zero["sub_group_size"] = case.sub_group_elements
        if case.persistence_elements is not None:
            zero["stage3_param_persistence_threshold"] = case.persistence_elements
    if case.offload in ("optimizer", "both"):
        zero["offload_optimizer"] = {"device": "cpu"}
    if case.offload in ("parameters", "both"):
        zero["offload_param"] = {"device": "cpu"}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
    }
    if case.dtype != "fp32":
        config[case.dtype] = {"enabled": True}
    if case.bf16_optimizer:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    if case.tp > 1:
        config["tensor_parallel"] = {"autotp_size": case.tp}
        if case.model == "small":
            config["tensor_parallel"]["partition_config"] = _partition_config(case)
    if case.optimizer == "config":
        config["optimizer"] = {"type": "AdamW", "params": {"lr": case.learning_rate, "torch_adam": True}}
    return config


def _partition_config(case: Case) -> dict[str, Any]:
    layers = [
        {"patterns": [r".*up\.weight$"], "partition_type": "column"},
        {"patterns": [r".*down\.weight$"], "partition_type": "row"},
    ]
    if case.fused:
        layers += [
            {
                "patterns": [r".*qkv\.weight$"],
                "partition_type": "column",
                "shape": [FUSED["qkv"], -1],
                "partition_dim": 0,
            },
            {
                "patterns": [r".*merge\.weight$"],
                "partition_type": "row",
                "shape": [-1, FUSED["merge"]],
                "partition_dim": 1,
            },
        ]
    return {"use_default_specs": False, "layer_specs": layers}


def batch(case: Case, number: int = 0) -> Any:
    """The same on every rank: tensor-parallel ranks must see the same batch."""
    generator = torch.Generator().manual_seed(number)
    if case.model == "small":
        return torch.randn((3, WIDTH), generator=generator).to(DTYPES[case.dtype])
    return torch.randint(0, case.vocabulary, (1, 6), generator=generator)


def forward(engine: Any, case: Case, number: int = 0) -> torch.Tensor:
    """The loss of batch `number`. Gathers and releases ZeRO-3 parameters as training does."""
    if case.model == "small":
        loss: torch.Tensor = engine(batch(case, number)).float().square().mean()
    else:
        tokens = batch(case, number)
        loss = engine(input_ids=tokens, labels=tokens).loss
    return loss


def step(engine: Any, case: Case, number: int = 0) -> float:
    loss = forward(engine, case, number)
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


def standstill(engine: Any) -> None:
    """The next step is one of length zero: whatever it changes, it changes because the masters say so."""
    for group in (engine.optimizer, getattr(engine.optimizer, "optimizer", engine.optimizer)):
        for one in group.param_groups:
            one["lr"] = 0.0


def consolidated(engine: Any, restore: bool = True) -> dict[str, torch.Tensor] | None:
    """DeepSpeed's own full weights on rank 0, `None` elsewhere. Collective; shares no code with `reshard`.

    The call changes the engine: below stage 3 it takes parameters out of their flat buffers, at stage 3 it gathers
    persistent ones. `restore` puts that back. Without tensor parallelism below stage 3 DeepSpeed has no such call;
    there each rank holds whole parameters, and rank 0's are the answer.
    """
    if engine.zero_optimization_stage() < 3 and engine.autotp_size() <= 1:
        weights: Any = {
            name: parameter.detach().clone() for name, parameter in engine.module.named_parameters()
        }
        return weights if torch.distributed.get_rank() == 0 else None
    weights = engine._consolidated_16bit_state_dict()
    if weights is not None:
        weights = {name: weights[name].clone() for name, _ in engine.module.named_parameters()}
    if restore:
        restored(engine)
    return weights


def restored(engine: Any) -> None:
    """Undoes what the oracle did to the engine."""
    optimizer = engine.optimizer
    if engine.zero_optimization_stage() == 3:
        optimizer.empty_partition_cache()
    elif hasattr(optimizer, "bit16_groups_flat"):
        for index in range(len(optimizer.bit16_groups_flat)):
            optimizer._update_model_bit16_weights(index)
    elif getattr(optimizer, "bf16_groups_flat", None):
        for tensors, flat in zip(optimizer.bf16_groups, optimizer.bf16_groups_flat, strict=True):
            optimizer._update_storage_to_flattened_tensor(tensor_list=tensors, flat_tensor=flat)


def full_state(engine: Any, case: Case, state: str) -> dict[str, torch.Tensor]:
    """A full optimizer state on every rank: ZeRO gathered by DeepSpeed, then TP shards joined where they are short.

    `state` is "fp32", "exp_avg" or "exp_avg_sq". Parameters that no optimizer owns are left out. Collective.
    """
    shapes, result = full_shapes(case), {}
    if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
        # DeepSpeed links after the first group's first step and never looks at the other groups again.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    for name, parameter in engine.module.named_parameters():
        # Tensor-parallel ranks may differ in what they hold: a shard of width zero is in no flat buffer.
        if parameter.requires_grad and shapes[name] and 0 not in shapes[name]:
            shard = _zero_gathered(parameter, state)
            result[name] = _joined(shard, shapes[name], case.tp, FUSED.get(name.split(".")[0]))
    return result


def _zero_gathered(parameter: Any, state: str) -> torch.Tensor:
    shape = getattr(parameter, "ds_shape", parameter.shape)
    if 0 in shape:
        return torch.empty(shape)
    if state == "fp32":
        value = deepspeed.utils.safe_get_full_fp32_param(parameter)
    else:
        value = deepspeed.utils.safe_get_full_optimizer_state(parameter, state)
    return torch.as_tensor(value).detach().clone().view(shape).float()


def _joined(
    shard: torch.Tensor, shape: tuple[int, ...], tp: int, parts: tuple[int, ...] | None
) -> torch.Tensor:
    """The full tensor; `parts` are the widths of what was fused along the cut axis, each cut evenly on its own."""
    if tp == 1:
        return shard
    shards: list[Any] = [None] * tp
    torch.distributed.all_gather_object(shards, shard, group=groups.get_tensor_model_parallel_group())
    cut = [axis for axis, extent in enumerate(shape) if any(one.shape[axis] != extent for one in shards)]
    if not cut:
        return shard
    widths = [width // tp for width in parts] if parts else None
    pieces = [one.split(widths, dim=cut[0]) if widths else (one,) for one in shards]
    return torch.cat([torch.cat(part, dim=cut[0]) for part in zip(*pieces, strict=True)], dim=cut[0])
