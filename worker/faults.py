"""Faults on demand, for tests: set by environment variables and row keys alone, so that no prompt's text can."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SWITCH = "FLEET_TEST_FAULTS"
POISON_KEYS = "FLEET_TEST_POISON_KEYS"
POISON_ABOVE = "FLEET_TEST_POISON_ABOVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Rows that kill the engine."""

    #: keys of the rows that do
    poison: frozenset[bytes] = frozenset()
    #: only with more than this many rows in the batch
    above: int = 0

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Faults:
        """No faults unless `SWITCH` is 1."""
        if env.get(SWITCH) != "1":
            return cls()
        keys = [bytes.fromhex(key) for key in env.get(POISON_KEYS, "").split(",") if key]
        return cls(poison=frozenset(keys), above=int(env.get(POISON_ABOVE, "0")))

    def strikes(self, keys: Iterable[bytes]) -> bool:
        """Whether a batch of rows with these keys kills the engine."""
        batch = list(keys)
        return len(batch) > self.above and not self.poison.isdisjoint(batch)

    def strike(self) -> None:
        """Kills the engine as a panicking kernel would."""
        os.abort()
