"""What stands between a live engine and its description, as exceptions.

EngineError            an engine, or a parameter of it, that cannot be described or moved as it is
  GatheredError        a ZeRO-3 parameter whose truth is not in its partition just now: `released(engine)`
  DetachedError        a parameter that no longer lies in the flat buffer that ZeRO keeps it in
  StaleError           shards whose buffers the engine has replaced since they were taken
  InternalsError       DeepSpeed does not look inside as this module expects
"""

from __future__ import annotations

from typing import Any

import torch.distributed
from deepspeed import __version__ as deepspeed_version

from reshard.errors import ReshardError

__all__ = ["DetachedError", "EngineError", "GatheredError", "InternalsError", "StaleError", "internal"]

_TESTED = "0.19.8"


class EngineError(ReshardError):
    """A live engine, or a parameter of it, that cannot be described or moved as it is."""

    def __init__(
        self, message: str, *, kind: str = "unsupported", rank: int | None = None, **facts: Any
    ) -> None:
        if rank is None and torch.distributed.is_initialized():
            rank = torch.distributed.get_rank()
        where = "" if rank is None else f"rank {rank}: "
        hint = facts.get("hint")
        way_out = f" (hint: {hint})" if hint else ""
        super().__init__(f"{where}{message}{way_out}", kind=kind, rank=rank, **facts)

    def __reduce__(self) -> Any:
        # The message already names the rank and the hint.
        return _rebuilt, (type(self), self.args, dict(self.__dict__))


class GatheredError(EngineError):
    """A ZeRO-3 parameter that is gathered, or on its way: the next forward reads that copy, not the partition."""


class DetachedError(EngineError):
    """A parameter whose data left ZeRO's flat buffer, and now differs from what the buffer holds."""


class StaleError(EngineError):
    """Shards that were taken before the engine replaced, moved or offloaded a buffer."""


class InternalsError(EngineError):
    """DeepSpeed's inside is not as expected; `expected` is what was looked for, `found` what was there."""


def _rebuilt(kind: type[EngineError], arguments: tuple[Any, ...], facts: dict[str, Any]) -> EngineError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(facts)
    return error


def internal(owner: Any, name: str) -> Any:
    """The attribute `name` of a DeepSpeed object.

    Raises:
        InternalsError: it has none. Names the attribute, the class and the version that was found.
    """
    value = getattr(owner, name, _ABSENT)
    if value is _ABSENT:
        raise unexpected(f"{type(owner).__name__}.{name}", f"no such attribute among {len(vars(owner))}")
    return value


def module_of(engine: Any) -> torch.nn.Module:
    """The module of an engine.

    Raises:
        EngineError: this is no engine. Names what it is.
    """
    if not isinstance(getattr(engine, "module", None), torch.nn.Module):
        raise EngineError(
            f"expected a DeepSpeed engine, found {type(engine).__name__}",
            kind="usage",
            found=type(engine).__name__,
            hint="deepspeed.initialize returns it first",
        )
    module: torch.nn.Module = engine.module
    return module


def refuse_unpartitioned(name: str, parameter: Any) -> None:
    """Refuses a parameter that ZeRO-3 has never seen.

    Raises:
        EngineError: names the parameter.
    """
    if not hasattr(parameter, "ds_tensor"):
        raise EngineError(
            f"{name} of shape {tuple(parameter.shape)} is not partitioned: ZeRO-3 does not know it",
            parameter=name,
            found=tuple(parameter.shape),
            hint="it came into the module after deepspeed.initialize",
        )


def unexpected(expected: str, found: str, parameter: str | None = None) -> InternalsError:
    """A refusal that says what was looked for, what was found, and in which DeepSpeed."""
    about = f"{parameter}: " if parameter else ""
    return InternalsError(
        f"{about}looked for {expected}, found {found} in deepspeed {deepspeed_version}",
        parameter=parameter,
        expected=expected,
        found=found,
        hint=f"the layouts of deepspeed {_TESTED} are known",
    )


_ABSENT = object()
