"""Generation that runs alike on all ranks of a copy.

    prompts, left-padded     a forward, then one a token     index 0 draws, all are told     rows that ended
    . . 5 7                  transformers' own cache         the same token everywhere       get padding

The requests of the ranks of a copy may differ: they are put together, answered once, and each rank gets its own rows.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from reshard import UsageError
from reshard.rollout.model import TensorParallelModel


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        tokens: how many at most per row.
        temperature: 0 or less takes the most likely token.
        top_p: keeps the smallest set of tokens whose probability is at least this.
        top_k: keeps the k most likely ones; 0 or less keeps all.
        samples: rows per prompt.
    """

    tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    samples: int = 1


@dataclass(frozen=True)
class Generated:
    """What came of a batch of prompts.

    Attributes:
        ids: ``[rows, prompt + response]``, the prompts left-padded, the responses right-padded.
        mask: 1 at prompt and response tokens, an end-of-sequence token among them.
        start: where the responses begin.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    start: int


class Generator:
    """Generates with a tensor-parallel copy. Every rank of the copy calls it.

    `end` are the tokens that end a response, `padding` what follows them. `seed` is that of the copy's draws.
    """

    def __init__(
        self, model: TensorParallelModel, *, end: Sequence[int], padding: int, seed: int = 0
    ) -> None:
        self._model = model
        self._end = torch.tensor(sorted(end), dtype=torch.long, device=model.device)
        self._padding = padding
        self._random = torch.Generator(device=model.device).manual_seed(seed)
        # The name changed within transformers 5.
        names = inspect.signature(type(model.module).forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"

    @torch.no_grad()
    def generate(self, ids: torch.Tensor, mask: torch.Tensor, sampling: Sampling) -> Generated:
        """Answers prompts ``[batch, length]``, left-padded; the same on every rank of the copy.

        Row ``i * samples + j`` of the result is sample j of prompt i.
        """
        from transformers import DynamicCache

        _check(ids, mask, sampling, self._model.module.config.vocab_size)
        device, start = self._model.device, ids.shape[1]
        ids = ids.to(device).repeat_interleave(sampling.samples, dim=0)
        mask = mask.to(device).repeat_interleave(sampling.samples, dim=0).long()
        cache = DynamicCache(config=self._model.module.config)
        is_done = torch.zeros(len(ids), dtype=torch.bool, device=device)
        fresh = ids
        for _ in range(sampling.tokens):
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -fresh.shape[1] :]
            logits = self._model.module(
                input_ids=fresh, attention_mask=mask, position_ids=positions, use_cache=True,
                logits_to_keep=1, **{self._cache_name: cache},
            ).logits[:, -1]  # fmt: skip
            token = self._drawn(logits.float(), sampling).masked_fill(is_done, self._padding)
            ids = torch.cat([ids, token.unsqueeze(1)], dim=1)
            mask = torch.cat([mask, (~is_done).long().unsqueeze(1)], dim=1)
            is_done = is_done | torch.isin(token, self._end)
            fresh = token.unsqueeze(1)
            if bool(is_done.all()):
                break
        return Generated(ids, mask, start)

    def generate_each(
        self, ids: torch.Tensor, mask: torch.Tensor, sampling: Sampling, refusal: Exception | None = None
    ) -> Generated:
        """As `generate`, where every rank of the copy brings prompts of its own.

        A request that several ranks bring, as the tensor-parallel ranks of a trainer do, is answered once, with the
        same samples for all of them. A rank with a `refusal` must come too: it is raised on all of them.
        """
        requests = self._model.team.exchange(refusal or (ids.cpu(), mask.cpu(), sampling))
        for request in requests:
            if isinstance(request, Exception):
                raise request
            their_ids, their_mask, theirs = request
            _check(their_ids, their_mask, theirs, self._model.module.config.vocab_size)
        if len({request[2] for request in requests}) > 1:
            raise UsageError("the ranks of a copy ask for different kinds of sampling")
        own, rows = 0, 0
        distinct: list[tuple[torch.Tensor, torch.Tensor]] = []
        for index, (their_ids, their_mask, _) in enumerate(requests):
            known = next((at for at, one in enumerate(distinct) if _same(one, (their_ids, their_mask))), None)
            if known is None:
                known = len(distinct)
                distinct.append((their_ids, their_mask))
            if index == self._model.team.index:
                own = known
        rows = sum(len(one) for one, _ in distinct[:own]) * sampling.samples
        length = max(one.shape[1] for one, _ in distinct)
        both = [
            torch.cat([_left_padded(pair[side], length, value) for pair in distinct])
            for side, value in ((0, self._padding), (1, 0))
        ]
        result = self.generate(both[0], both[1], sampling)
        first = length - ids.shape[1]
        part = slice(rows, rows + len(ids) * sampling.samples)
        used = max(1, int(result.mask[part, length:].sum(1).max()))
        columns = slice(first, length + used)
        device = ids.device
        return Generated(
            result.ids[part, columns].to(device), result.mask[part, columns].to(device), ids.shape[1]
        )

    def _drawn(self, logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
        """The next token of each row: drawn by index 0, so that no rounding can part the ranks."""
        if sampling.temperature <= 0:
            token = logits.argmax(-1)
        else:
            likely = _filtered(logits / sampling.temperature, sampling)
            token = torch.multinomial(likely.softmax(-1), 1, generator=self._random).squeeze(1)
        return self._model.team.first_tells(token)


def _check(ids: torch.Tensor, mask: torch.Tensor, sampling: Sampling, vocabulary: int) -> None:
    """Raises `UsageError` for what cannot be answered, or not rightly."""
    if ids.dim() != 2 or ids.shape != mask.shape or not ids.numel():
        shapes = f"{tuple(ids.shape)} with a mask of shape {tuple(mask.shape)}"
        raise UsageError(f"prompts are a batch of at least one row and one token, found {shapes}")
    if ids.is_floating_point() or int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        found = f"{ids.dtype} from {ids.min().item()} to {ids.max().item()}"
        raise UsageError(f"tokens are integers from 0 to {vocabulary - 1}, found {found}")
    ends = mask[:, -1] != 0
    if not bool(ends.all()):
        row = int((~ends).nonzero()[0])
        raise UsageError(f"prompts are left-padded: the last token of row {row} is masked out", found=row)
    if sampling.tokens < 1:
        raise UsageError(f"at least one token must be asked for, found {sampling.tokens}")
    if sampling.samples < 1:
        raise UsageError(f"at least one sample of a prompt must be asked for, found {sampling.samples}")
    if math.isnan(sampling.temperature) or math.isnan(sampling.top_p):
        raise UsageError(f"expected numbers, found {sampling}")


def _filtered(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Logits with all but the tokens that may be drawn at minus infinity."""
    if 0 < sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        chances = ordered.softmax(-1)
        # A token is dropped if those before it reach top_p; the first never is.
        is_beyond = chances.cumsum(-1) - chances >= sampling.top_p
        is_beyond[:, 0] = False
        logits = logits.masked_fill(is_beyond.scatter(1, order, is_beyond), -torch.inf)
    return logits


def _same(one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


def _left_padded(rows: torch.Tensor, length: int, value: int) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (length - rows.shape[1], 0), value=value)
