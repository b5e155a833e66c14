"""Layouts of rollout copies: one storage per parameter tensor, named as the parameter.

    Placement(tp=2, copies=2, ranks=(4, 5, 6, 7))        storages of rank 5 (tensor-parallel index 1 of copy 0)
      copy 0: index 0 on rank 4, index 1 on rank 5         "model.embed_tokens.weight"          whole
      copy 1: index 0 on rank 6, index 1 on rank 7         "model.layers.0.mlp.up_proj.weight"  rows 9..18
                                                           ...

So ``dict(model.named_parameters())`` of a copy's module is what a plan's target storages bind to.

Where a Hugging Face model is cut is what `Layout.autotp` says (DeepSpeed AutoTP's rules: attention by whole key-value
heads, MLP and head near-even, row-parallel biases, norms and untied embeddings whole, a tied embedding with its head).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from reshard import Layout, LayoutBuilder, UsageError

Shape = tuple[int, ...]
Cut = tuple[int, Sequence[int]] | None
"""An axis and one width per tensor-parallel index, or None: whole on every rank."""


@dataclass(frozen=True)
class Region:
    """A box of a parameter."""

    origin: Shape
    shape: Shape


@dataclass(frozen=True)
class Placement:
    """Which rank of the world runs which tensor-parallel index of which copy.

    Attributes:
        tp: ranks of one copy.
        copies: how many copies there are.
        ranks: a rank per slot, the tensor-parallel index fastest; ranks 0, 1, 2, ... if not given. Each at most once.
    """

    tp: int
    copies: int = 1
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.tp < 1 or self.copies < 1:
            raise UsageError(f"tp and copies must be at least 1, found {self.tp} and {self.copies}")
        ranks = tuple(self.ranks) or tuple(range(self.tp * self.copies))
        object.__setattr__(self, "ranks", ranks)
        slots = self.tp * self.copies
        if len(ranks) != slots or len(set(ranks)) != slots or min(ranks) < 0:
            raise UsageError(
                f"{self.copies} copies of {self.tp} ranks need {slots} distinct ranks, found {ranks}",
                expected=slots,
                found=ranks,
            )

    def copy_ranks(self, copy: int) -> tuple[int, ...]:
        """The ranks of a copy, by tensor-parallel index."""
        return self.ranks[copy * self.tp : (copy + 1) * self.tp]

    def slot(self, rank: int) -> tuple[int, int] | None:
        """The copy and the tensor-parallel index that a rank runs, or None."""
        return divmod(self.ranks.index(rank), self.tp) if rank in self.ranks else None


@dataclass(frozen=True)
class Cuts:
    """How the parameters of a model are cut over one copy.

    Attributes:
        shapes, dtypes: of whole parameters, in the model's order.
        regions: what each tensor-parallel index has of a parameter; None: nothing.
        aliases: second names, as tied weights have.
    """

    tp: int
    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, str]
    regions: Mapping[str, tuple[Region | None, ...]]
    aliases: Mapping[str, str]

    def widths(self, parameter: str, axis: int) -> tuple[int, ...]:
        """How far each tensor-parallel index reaches along an axis of a parameter."""
        return tuple(region.shape[axis] if region else 0 for region in self.regions[parameter])

    def layout(self, placement: Placement, dtype: str | Mapping[str, str] | None = None) -> Layout:
        """The layout of all copies, in the model's types, or in `dtype` (of all, or by parameter)."""
        if placement.tp != self.tp:
            raise UsageError(f"the model is cut over {self.tp} ranks, the copies have {placement.tp}")
        dtypes = (
            dtype if isinstance(dtype, Mapping) else {name: dtype or of for name, of in self.dtypes.items()}
        )
        builder = LayoutBuilder()
        numbers = {name: builder.parameter(name, shape, dtypes[name]) for name, shape in self.shapes.items()}
        for alias, name in self.aliases.items():
            builder.alias(alias, numbers[name])
        for slot, rank in enumerate(placement.ranks):
            for name, number in numbers.items():
                region = self.regions[name][slot % self.tp]
                length = prod(region.shape) if region else 0
                buffer = builder.tensor(rank, name, dtypes[name], length)
                if region and length:
                    builder.place(number, buffer, origin=region.origin, shape=region.shape)
        return builder.build()


def model_cuts(config: Any, tp: int) -> Cuts:
    """How AutoTP cuts a Hugging Face model, Qwen3 or Llama, over `tp` ranks.

    `config` is a transformers configuration, the dictionary of a config.json, or its text. Raises `UsageError` or
    `LayoutError` for a model that `Layout.autotp` cannot lay out.
    """
    layout = Layout.autotp(config_dictionary(config), f"autotp:tp={tp},copies=1")
    names = [parameter.name for parameter in layout.parameters]
    regions: dict[str, list[Region | None]] = {name: [None] * tp for name in names}
    for piece in layout.pieces():
        regions[piece.parameter][piece.rank] = Region(tuple(piece.origin), tuple(piece.shape))
    return Cuts(
        tp,
        {parameter.name: tuple(parameter.shape) for parameter in layout.parameters},
        {parameter.name: parameter.dtype for parameter in layout.parameters},
        {name: tuple(boxes) for name, boxes in regions.items()},
        layout.aliases,
    )


def rollout_layout(config: Any, placement: Placement, dtype: str | None = None) -> Layout:
    """The layout of copies of a Hugging Face model; see `model_cuts`."""
    return model_cuts(config, placement.tp).layout(placement, dtype)


def linear_cuts(
    shapes: Mapping[str, Iterable[int]], cuts: Mapping[str, Cut], tp: int, dtype: str | Mapping[str, str]
) -> Cuts:
    """The cuts of any module, by hand: `cuts` names an axis and widths for each parameter that is not whole.

    ```python
    linear_cuts({"up.weight": (18, 7), "up.bias": (18,), "down.weight": (7, 18), "down.bias": (7,)},
                {"up.weight": (0, [5, 5, 4, 4]), "up.bias": (0, [5, 5, 4, 4]), "down.weight": (1, [5, 5, 4, 4])},
                tp=4, dtype="bf16").layout(Placement(4))
    ```

    Raises `UsageError` for a cut of an unknown parameter or axis, and for widths that are not `tp` or do not sum to
    the extent of their axis.
    """
    whole = {name: tuple(shape) for name, shape in shapes.items()}
    for name in cuts:
        if name not in whole:
            raise UsageError(f"there is a cut for {name}, but no such parameter", parameter=name)
    regions = {name: _regions(name, shape, cuts.get(name), tp) for name, shape in whole.items()}
    dtypes = dict.fromkeys(whole, dtype) if isinstance(dtype, str) else dict(dtype)
    return Cuts(tp, whole, dtypes, regions, {})


def _regions(name: str, shape: Shape, cut: Cut, tp: int) -> tuple[Region | None, ...]:
    if cut is None:
        return (Region((0,) * len(shape), shape),) * tp
    axis, widths = cut
    if not 0 <= axis < len(shape):
        raise UsageError(
            f"{name} is to be cut along axis {axis}, its shape is {shape}", parameter=name, found=axis
        )
    if len(widths) != tp or sum(widths) != shape[axis] or min(widths) < 0:
        raise UsageError(
            f"the cut of {name} needs {tp} widths that sum to {shape[axis]}, found {list(widths)}",
            parameter=name,
            expected=shape[axis],
            found=list(widths),
        )
    boxes: list[Region | None] = []
    for index, width in enumerate(widths):
        origin = tuple(sum(widths[:index]) if at == axis else 0 for at in range(len(shape)))
        extent = tuple(width if at == axis else length for at, length in enumerate(shape))
        boxes.append(Region(origin, extent) if width else None)
    return tuple(boxes)


def dtype_of_each(dtype: str | Mapping[str, str] | None, own: Mapping[str, str]) -> Mapping[str, str]:
    """The type of each parameter: one for all, or by name; their own if None."""
    return dtype if isinstance(dtype, Mapping) else {name: dtype or of for name, of in own.items()}


def near_even(extent: int, tp: int) -> list[int]:
    """The near-even widths of an axis, wider ones first: 18 over 4 is 5, 5, 4, 4."""
    return [extent // tp + (index < extent % tp) for index in range(tp)]


def config_dictionary(config: Any) -> dict[str, Any]:
    """A Hugging Face configuration as the dictionary of its config.json."""
    if hasattr(config, "to_json_string"):
        # Not `to_dict`, whose values are not all JSON.
        config = config.to_json_string(use_diff=False)
    try:
        loaded: dict[str, Any] = json.loads(config) if isinstance(config, str) else dict(config)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"expected a transformers configuration, a dictionary or the text of a config.json, found {config[:40]!r}",
            found=config,
        ) from error
    return loaded
