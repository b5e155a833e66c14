"""DeepSpeed's rollout interface over a tensor-parallel copy that is synced by a plan.

    rollout = TensorParallelRollout(engine, config, Placement(tp=4))     # instead of HybridEngineRollout(engine, ...)
    for step, request in enumerate(requests):
        rollout.sync_weights(step)                                       # engine ──► copy, in place
        batch = rollout.generate(request, sampling)                      # RolloutRequest ──► RolloutBatch
        ...                                                              # train on it

Importing this module imports DeepSpeed, whose `deepspeed.runtime.rollout` it implements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from deepspeed.runtime.rollout.base import RolloutBatch, RolloutEngine, RolloutRequest, SamplingConfig

from reshard import Layout, UsageError
from reshard.rollout.council import Council, RolloutError
from reshard.rollout.generation import Generator, Sampling
from reshard.rollout.layouts import Placement, model_cuts
from reshard.rollout.model import TensorParallelModel, make_team
from reshard.rollout.source import WeightSource, as_source
from reshard.rollout.sync import SyncOptions, WeightSync
from reshard.torch import State
from reshard.torch.groups import dissolve


@dataclass(frozen=True)
class RolloutOptions:
    """What a copy is like.

    Attributes:
        dtype: of its parameters, such as "bf16"; the trainer's if None. Another one needs ``SyncOptions(cast=True)``.
        device: where they lie.
        end: tokens that end a response; the configuration's ``eos_token_id`` if None.
        padding: the token after an end; the configuration's ``pad_token_id`` if None, else the first of `end`, else 0.
        seed: of the draws; copy c draws with ``seed + c``.
    """

    dtype: str | None = None
    device: torch.device | str = "cpu"
    end: Sequence[int] | None = None
    padding: int | None = None
    seed: int = 0


class TensorParallelRollout(RolloutEngine):  # type: ignore[misc]
    """Rollout copies of a Hugging Face model beside a trainer, on some or all ranks of the world.

    Every rank of the world makes one, and calls `sync_weights`. The plan is made here, once; it is made again if
    `replan` is called, or if a source's ``fingerprint()`` changes.

    Args:
        source: a DeepSpeed engine, or a `WeightSource`; None on a rank that trains nothing.
        config: the transformers configuration of the model, Qwen3 or Llama.
        placement: which ranks run which shard.
        options: see `RolloutOptions`.
        sync: see `SyncOptions`.

    Raises:
        RolloutError: on every rank, if one could not use its source, describe its weights, build its copy or plan.
    """

    name = "reshard"

    def __init__(
        self,
        source: Any,
        config: Any,
        placement: Placement,
        options: RolloutOptions | None = None,
        sync: SyncOptions | None = None,
    ) -> None:
        options, sync = options or RolloutOptions(), sync or SyncOptions()
        council = Council(sync.timeout)
        given: list[WeightSource | None] = [None]

        def accept() -> None:
            given[0] = None if source is None else as_source(source)

        council.together("use its source", accept)
        layout = council.layout(given[0])
        team = make_team(placement, options.device)
        self._groups: list[Any] = [team.group] if team else []
        self._is_shut = False
        self.model: TensorParallelModel | None = None
        self._generator: Generator | None = None
        targets: list[Layout] = []

        def build() -> None:
            cuts = model_cuts(config, placement.tp)
            dtypes = _dtypes(layout, list(cuts.shapes), options.dtype)
            targets.append(cuts.layout(placement, dtypes))
            if team is not None:
                self.model = TensorParallelModel(config, team, dtype=dtypes, device=options.device, cuts=cuts)
                copy = placement.ranks.index(council.rank) // placement.tp
                end, padding = _special_tokens(config, options)
                self._generator = Generator(self.model, end=end, padding=padding, seed=options.seed + copy)

        council.together("build its copy", build)
        # Made in `build`, where a type checker does not see it.
        model: TensorParallelModel | None = self.model
        tensors = model.tensors() if model else {}
        self.weights = WeightSync(given[0], targets[0], tensors, sync, council=council, layout=layout)

    @property
    def state(self) -> State:
        """What the copy on this rank holds."""
        return self.weights.state

    @property
    def version(self) -> int | None:
        """The step whose weights the copy holds; None if there is none, or if it is torn."""
        return self.weights.version

    def sync_weights(self, step: int) -> None:
        """Moves the trainer's weights into the copies, in place, as version `step`. Every rank of the world calls it.

        Raises: see `WeightSync.sync`. After an error `state` says whether the copy is still what it was.
        """
        self._refuse_if_shut()
        self.weights.sync(step)

    def replan(self) -> None:
        """Asks for the trainer's layout again and plans anew. Every rank of the world calls it."""
        self._refuse_if_shut()
        self.weights.replan()

    def generate(self, request: RolloutRequest, sampling: SamplingConfig) -> RolloutBatch:
        """Answers prompts. Every rank of a copy calls it, with its own request or all with the same one.

        Raises:
            RolloutError: this rank runs no copy; on every rank of a copy: one of them holds no version.
            UsageError: on every rank of a copy: prompts that are not left-padded, tokens that the model does not have.
        """
        if self.model is None or self._generator is None:
            raise RolloutError(
                f"no copy runs on rank {self.weights.rank}", kind="usage", rank=self.weights.rank
            )
        wanted = Sampling(
            tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            samples=sampling.n_samples_per_prompt,
        )
        result = self._generator.generate_each(
            request.prompt_ids, request.prompt_attention_mask, wanted, self._refusal(sampling)
        )
        starts = torch.full((len(result.ids),), result.start, dtype=torch.long, device=result.ids.device)
        return RolloutBatch(input_ids=result.ids, attention_mask=result.mask, response_start_idx=starts)

    def _refusal(self, sampling: SamplingConfig) -> RolloutError | None:
        """Why this rank cannot answer, though its copy may be fine on others."""
        if self.state is not State.COMMITTED:
            return RolloutError(
                f"the copy on rank {self.weights.rank} holds no version: it is {self.state.value}",
                kind="invalid",
                rank=self.weights.rank,
                expected=State.COMMITTED.value,
                found=self.state.value,
                hint="sync_weights(step) gives it one",
            )
        if sampling.continuous_batch_size is not None:
            return RolloutError(
                f"continuous batching, asked for on rank {self.weights.rank}, is not done here",
                kind="unsupported",
                rank=self.weights.rank,
                found="continuous_batch_size",
            )
        return None

    def shutdown(self) -> None:
        """Gives up the copy and all groups. Every rank of the world calls it."""
        self._is_shut = True
        self.weights.close()
        self.model, self._generator = None, None
        while self._groups:
            dissolve(self._groups.pop())

    def _refuse_if_shut(self) -> None:
        if self._is_shut:
            rank = self.weights.rank
            raise RolloutError(f"the rollout on rank {rank} was shut down", kind="usage", rank=rank)


def _dtypes(layout: Layout, names: Sequence[str], dtype: str | None) -> dict[str, str]:
    """The type of each parameter of the copies: as asked, else the trainer's."""
    found = {parameter.name: parameter.dtype for parameter in layout.parameters}
    found.update({alias: found[name] for alias, name in layout.aliases.items()})
    missing = [name for name in names if name not in found]
    if missing:
        raise UsageError(
            f"the trainer has no parameter {missing[0]}, which the copies need",
            parameter=missing[0],
            found=list(found),
        )
    # What lies beside the model, such as a value head, is the trainer's own affair.
    roots = {name.split(".")[0] for name in names}
    taken = {*names, *(name for alias, name in layout.aliases.items() if alias in names)}
    unused = [
        parameter.name
        for parameter in layout.parameters
        if parameter.name not in taken and parameter.name.split(".")[0] in roots
    ]
    if unused:
        raise UsageError(
            f"the copies have no place for the trainer's parameter {unused[0]}: they would be of another model",
            parameter=unused[0],
            found=unused,
        )
    return {name: dtype or found[name] for name in names}


def _special_tokens(config: Any, options: RolloutOptions) -> tuple[list[int], int]:
    end = options.end if options.end is not None else getattr(config, "eos_token_id", None)
    ends = [end] if isinstance(end, int) else list(end or [])
    padding = options.padding if options.padding is not None else getattr(config, "pad_token_id", None)
    return ends, padding if padding is not None else (ends or [0])[0]
