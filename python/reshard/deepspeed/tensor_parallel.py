"""How AutoTP cut the parameters, as its layers say: never as the configuration says.

    module.layers.0.mlp.down_proj   LinearAllreduce: mp_group (ranks), tp_index, and on its weight an affine map
    module.norm                     an ordinary layer: whole on every tensor-parallel rank

A second engine in a process keeps the groups of the first whatever its configuration asks for, so only the layers' own
groups count. Sources: DeepSpeed 0.19.8 `module_inject/layers.py`, `checkpoint/affine.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from deepspeed.checkpoint.constants import DS_AUTOTP_UC_META
from deepspeed.module_inject import layers

from .errors import EngineError, internal, unexpected

__all__ = ["ParameterFacts", "TensorParallel", "described"]

# Layers that cut their parameters and describe the cut wrongly or not at all.
_UNDESCRIBED = tuple(
    getattr(layers, name)
    for name in ("TensorParallelConv2d", "conv_LinearLayer", "Conv_LinearALlreduce")
    if hasattr(layers, name)
)


@dataclass(frozen=True)
class TensorParallel:
    """The tensor-parallel group of this rank: its ranks in order, which of them this one is, and the group (or None)."""

    ranks: tuple[int, ...]
    index: int
    group: Any


@dataclass(frozen=True)
class ParameterFacts:
    """One parameter of the module, tied ones once.

    Attributes:
        name: its first name in `module.named_parameters()`.
        aliases: its other names.
        shape: of the full parameter, before anything was cut.
        affine_map: what its layer published, a dict; None if it is whole on every tensor-parallel rank.
        parameter: the object.
    """

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    affine_map: Mapping[str, Any] | None
    parameter: Any

    def agreed(self) -> tuple[Any, ...]:
        """What every tensor-parallel rank must say alike."""
        return self.name, self.aliases, self.shape, self.affine_map is None, str(self.parameter.dtype)


def described(module: torch.nn.Module) -> tuple[TensorParallel, list[ParameterFacts]]:
    """The group over which AutoTP cut `module` (this rank alone where it cut nothing), and all parameters in module order.

    Frozen and empty parameters are among them. One walk over the modules.

    Raises:
        EngineError: layers that were cut over different groups; a parameter that its layer cut and does not describe,
            with the reason that DeepSpeed gives.
        InternalsError: a layer that says another index or size than its group, a shard that is not as its map says.
    """
    tp, first = TensorParallel((torch.distributed.get_rank(),), 0, None), ""
    names: dict[int, list[str]] = {}
    parameters: dict[int, Any] = {}
    seen: set[int] = set()
    for prefix, layer in module.named_modules(remove_duplicate=False):
        for name, parameter in layer._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), []).append(f"{prefix}.{name}" if prefix else name)
                parameters[id(parameter)] = parameter
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        if isinstance(layer, _UNDESCRIBED):
            raise _undescribed(prefix, layer)
        if getattr(layer, "mp_group", None) is not None and hasattr(layer, "tp_world_size"):
            found = _group_of(prefix, layer)
            if first and found.ranks != tp.ranks:
                raise EngineError(
                    f"{first} is cut over ranks {list(tp.ranks)} and {prefix} over {list(found.ranks)}",
                    parameter=prefix,
                    expected=tp.ranks,
                    found=found.ranks,
                )
            tp, first = found, first or prefix
    return tp, [_facts(names[key], parameter, tp) for key, parameter in parameters.items()]


def _group_of(name: str, layer: Any) -> TensorParallel:
    rank, group = torch.distributed.get_rank(), layer.mp_group
    ranks = tuple(torch.distributed.get_process_group_ranks(group))
    said = (layer.tp_world_size, internal(layer, "tp_index"))
    if rank not in ranks or said != (len(ranks), ranks.index(rank)):
        raise unexpected(f"{name} with size and index {said}", f"the process group {list(ranks)}")
    return TensorParallel(ranks, said[1], group)


def _undescribed(name: str, layer: Any) -> EngineError:
    return EngineError(
        f"{name}: DeepSpeed does not describe how {type(layer).__name__} cuts its parameters",
        parameter=name,
        found=type(layer).__name__,
        hint="keep this layer out of AutoTP with a partition_config",
    )


def _facts(names: list[str], parameter: Any, tp: TensorParallel) -> ParameterFacts:
    name, *aliases = names
    affine_map, full = _published(name, parameter)
    if affine_map is not None:
        _check_shard(name, parameter, affine_map, full, tp)
    return ParameterFacts(name, tuple(aliases), full, affine_map, parameter)


def shard_shape(parameter: Any) -> tuple[int, ...]:
    """Of this rank's tensor-parallel shard: `param.shape` is empty where ZeRO-3 has partitioned it."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _published(name: str, parameter: Any) -> tuple[Mapping[str, Any] | None, tuple[int, ...]]:
    said = getattr(parameter, DS_AUTOTP_UC_META, None)
    if said is None:
        if getattr(parameter, layers.DS_IS_REPLACED_MODULE, False):
            raise unexpected(f"attribute {DS_AUTOTP_UC_META}", "a parameter that AutoTP replaced without it", name)
        return None, shard_shape(parameter)
    conversion = said.get("conversion") or {}
    affine_map, original = conversion.get("affine_map"), conversion.get("original_shape")
    if affine_map is None:
        reason = conversion.get("unsupported_reason") or "it publishes no affine map"
        raise EngineError(
            f"{name}: DeepSpeed cannot describe its tensor-parallel layout: {reason}",
            parameter=name,
            found=reason,
            hint="give the layer a partition_config that says its sub-parameters",
        )
    full = tuple(original if original is not None else affine_map["logical_shape"])
    return affine_map, full


def _check_shard(
    name: str, parameter: Any, affine_map: Mapping[str, Any], full: tuple[int, ...], tp: TensorParallel
) -> None:
    if math.prod(full) != math.prod(affine_map["logical_shape"]):
        raise unexpected(f"a map of shape {full}", f"one of shape {tuple(affine_map['logical_shape'])}", name)
    ranks = affine_map["ranks"]
    mine = ranks.get(tp.index, ranks.get(str(tp.index)))
    if mine is None or len(ranks) != len(tp.ranks):
        raise unexpected(f"a map of {len(tp.ranks)} ranks with index {tp.index}", f"ranks {sorted(ranks)}", name)
    if math.prod(mine["shard_shape"]) != math.prod(shard_shape(parameter)):
        raise unexpected(
            f"a shard of shape {tuple(mine['shard_shape'])} as its map says", f"{shard_shape(parameter)}", name
        )
