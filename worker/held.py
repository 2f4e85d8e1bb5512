"""What a worker's books are made of: a shard it holds, the model that one needs, and what follows from an event."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.messages import Crashed, Message, Returned, RowResult, Shard

Report = RowResult | Crashed | Returned


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """The model a shard needs."""

    model: str
    model_hash: str
    #: for vectors rather than text
    embeds: bool = False

    @classmethod
    def of(cls, shard: Shard) -> ModelRef:
        """That of `shard`."""
        return cls(model=shard.model, model_hash=shard.model_hash, embeds=shard.sampling.embedding is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows from an event."""

    to_engine: tuple[Message, ...] = ()
    to_coordinator: tuple[Report, ...] = ()


@dataclass(slots=True, kw_only=True)
class Held:
    """A shard from its taking until the coordinator has all its results."""

    shard: Shard
    #: its rows without an outcome; empty is done
    owed: set[int]
    #: True while the present engine has its rows
    given: bool = False
