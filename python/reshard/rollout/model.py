"""A tensor-parallel copy of a Hugging Face causal language model, for tests, examples and small rollouts.

    Qwen3ForCausalLM on the meta device ──► linears replaced by shards ──► memory, NaN-born, in place for good
      q k v gate up: ColumnLinear    o down: RowLinear    lm_head: gathered    tied: one VocabularyEmbedding

Which layers are cut, and which way, is the model's own plan for tensor parallelism (transformers' ``tp_plan``);
how wide each shard is, is what `model_cuts` says.
"""

from __future__ import annotations

import fnmatch
import inspect
import types
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from reshard import ReshardError, UsageError
from reshard.rollout.layouts import Cuts, Placement, dtype_of_each, model_cuts
from reshard.rollout.linear import ColumnLinear, RowLinear, Team, VocabularyEmbedding
from reshard.torch.dtypes import REAL

_KINDS = {"colwise": "column", "rowwise": "row", "colwise_gather_output": "head", "colwise_rep": "head"}
_FLOATS = ("f64", "f32", "f16", "bf16")


class TensorParallelModel:
    """This rank's shard of a copy.

    Args:
        config: a transformers configuration of a Qwen3 or Llama model.
        team: this rank's place among the ranks of the copy, see `make_team`.
        dtype: of all parameters, such as "bf16", or by name; what the configuration says if None.
        device: where they lie.
        cuts: how parameters are cut; `model_cuts(config, team.tp)` if None.

    Attributes:
        module: the model, callable as transformers' own, with the same names of parameters.
        cuts: how its parameters are cut.
    """

    def __init__(
        self,
        config: Any,
        team: Team,
        *,
        dtype: str | Mapping[str, str] | None = None,
        device: torch.device | str = "cpu",
        cuts: Cuts | None = None,
    ) -> None:
        from transformers import AutoModelForCausalLM

        self.team = team
        self.cuts = cuts or model_cuts(config, team.tp)
        with torch.device("meta"):
            self.module: Any = AutoModelForCausalLM.from_config(config)
        _shard(self.module, self.cuts, team)
        types_of = dtype_of_each(dtype, self.cuts.dtypes)
        _give_memory(self.module, types_of, torch.device(device))
        _recompute_buffers(self.module, config, torch.device(device))
        self.module.eval()
        self._check()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters by name, a tied one under its first: what the target storages of a plan bind to.

        They are written in place: the tensors and their addresses are the same for the life of the model.
        """
        return dict(self.module.named_parameters())

    @property
    def device(self) -> torch.device:
        """Where the parameters lie."""
        device: torch.device = next(self.module.parameters()).device
        return device

    def _check(self) -> None:
        """The module holds exactly what the cuts say of this rank."""
        found = {name: tuple(tensor.shape) for name, tensor in self.tensors().items()}
        for name in self.cuts.shapes:
            region = self.cuts.regions[name][self.team.index]
            is_right = name in found and (found[name] == region.shape if region else 0 in found[name])
            if not is_right:
                expected = region.shape if region else "nothing"
                raise ReshardError(
                    f"the module holds {name} as {found.get(name)}, the cuts say {expected}",
                    kind="unsupported",
                    parameter=name,
                    expected=expected,
                    found=found.get(name),
                )
        for name in found.keys() - self.cuts.shapes.keys():
            raise ReshardError(
                f"the module has a parameter {name} that the layout does not know",
                kind="unsupported",
                parameter=name,
                found=found[name],
            )


def make_team(placement: Placement, device: torch.device | str = "cpu") -> Team | None:
    """This rank's place in its copy, or None if it runs none. Every rank of the world calls it: it makes groups.

    The groups speak gloo if the copies lie on the host, else what the world speaks.

    Raises `UsageError` if a copy has a rank that the world does not have.
    """
    is_running = dist.is_available() and dist.is_initialized()
    world, rank = (dist.get_world_size(), dist.get_rank()) if is_running else (1, 0)
    if max(placement.ranks) >= world:
        raise UsageError(
            f"rank {max(placement.ranks)} is to run a copy, the world has {world} ranks",
            rank=max(placement.ranks),
            expected=world,
        )
    team, backend = None, "gloo" if torch.device(device).type == "cpu" else None
    for copy in range(placement.copies):
        ranks = placement.copy_ranks(copy)
        group: Any = dist.new_group(list(ranks), backend=backend) if placement.tp > 1 else None
        if rank in ranks:
            team = Team(ranks.index(rank), placement.tp, group, ranks)
    return team


def _shard(model: Any, cuts: Cuts, team: Team) -> None:
    if team.tp == 1:
        return
    plan = _parallel_plan(model)
    is_tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    for name, module in list(model.named_modules()):
        kind = next((kind for pattern, kind in plan.items() if fnmatch.fnmatchcase(name, pattern)), None)
        if kind is not None and isinstance(module, nn.Linear):
            model.set_submodule(name, _linear(name, module, kind, cuts, team))
    if is_tied:
        name = next(name for name, module in model.named_modules() if module is model.get_input_embeddings())
        widths = cuts.widths(f"{name}.weight", 0)
        embedding = VocabularyEmbedding(model.get_input_embeddings(), team, widths)
        model.set_submodule(name, embedding)
        head = ColumnLinear(_linear_like(embedding, sum(widths)), team, widths, gathered=True)
        head.weight = embedding.weight
        model.set_output_embeddings(head)
    for name, module in model.named_modules():
        key = f"{name}.k_proj.weight"
        if key in cuts.shapes and not cuts.widths(key, 0)[team.index]:
            module.forward = types.MethodType(_attend_without_heads, module)


def _parallel_plan(model: Any) -> dict[str, str]:
    """Patterns of module names, each with the way in which such linears are cut."""
    prefix = model.base_model_prefix
    plan = {f"{prefix}.{pattern}": kind for pattern, kind in (model.config.base_model_tp_plan or {}).items()}
    plan.update(type(model)._tp_plan or {})
    if not plan:
        raise ReshardError(f"{type(model).__name__} has no plan for tensor parallelism", kind="unsupported")
    return {pattern: _KINDS[kind] for pattern, kind in plan.items() if kind in _KINDS}


def _linear(name: str, whole: nn.Linear, kind: str, cuts: Cuts, team: Team) -> nn.Module:
    weight = cuts.aliases.get(f"{name}.weight", f"{name}.weight")
    if kind == "row":
        return RowLinear(whole, team, cuts.widths(weight, 1))
    return ColumnLinear(whole, team, cuts.widths(weight, 0), gathered=kind == "head")


def _linear_like(embedding: VocabularyEmbedding, rows: int) -> nn.Linear:
    return nn.Linear(embedding.weight.shape[1], rows, bias=False, device="meta")


def _attend_without_heads(self: Any, hidden_states: torch.Tensor, **others: Any) -> tuple[torch.Tensor, None]:
    """Attention on a rank that has no head of it: an empty cache that grows all the same, and its part of the sum."""
    cache = others.get("cache", others.get("past_key_values"))
    if cache is not None:
        batch, length = hidden_states.shape[:2]
        nothing = hidden_states.new_empty((batch, 0, length, self.head_dim))
        cache.update(nothing, nothing, self.layer_idx)
    return self.o_proj(hidden_states[..., :0]), None


def _give_memory(model: nn.Module, types_of: Mapping[str, str], device: torch.device) -> None:
    """Every parameter gets its own memory, filled with NaN: what a sync does not write is seen."""
    born: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        if name not in types_of:
            raise ReshardError(
                f"the layout does not know parameter {name}", kind="unsupported", parameter=name
            )
        if types_of[name] not in _FLOATS:
            raise UsageError(
                f"{name} cannot be {types_of[name]} in a module", parameter=name, found=types_of[name]
            )
        values = torch.full(parameter.shape, torch.nan, dtype=REAL[types_of[name]], device=device)
        born[id(parameter)] = nn.Parameter(values, requires_grad=False)
    for module in model.modules():
        for key, held in module._parameters.items():
            if held is not None:
                module._parameters[key] = born[id(held)]


def _recompute_buffers(model: nn.Module, config: Any, device: torch.device) -> None:
    """Buffers that no checkpoint holds, such as rotary frequencies: their module's constructor computes them."""
    for name, module in list(model.named_modules()):
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            if "config" not in inspect.signature(type(module)).parameters:
                raise ReshardError(f"the buffers of {name} cannot be computed here", kind="unsupported")
            with torch.device(device):
                model.set_submodule(name, type(module)(config=config))
