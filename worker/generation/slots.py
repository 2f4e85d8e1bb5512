"""The decode caches of a batch: one place a row, written in place, for each of mlx-lm's cache types that batch.

To a model each class is what mlx-lm's cache of that type is for one-token inputs; the batch uses the methods of
`Slots`. MLX writes a buffer in place only when nothing under way still reads it, and else copies it whole; so no step
may be under way while rows are placed or moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from worker.generation.positions import Positions

#: Columns a buffer grows by. A growth copies the buffer once, so once in 128 steps; unused columns only take memory.
STEP_COLUMNS = 128

#: One layer's cached state of one row: arrays with a leading axis of 1, None for nothing yet; a list for a list.
Piece = Any


class Slots(Protocol):
    """What the batch asks of a layer's cache."""

    def room(self, slots: int, columns: int) -> None:
        """Makes room for so many slots and columns, no more and no less, keeping what fits."""

    def count(self, slots: int) -> None:
        """So many slots are computed in a step from now on."""

    def place(self, slot: int, piece: Piece) -> None:
        """Puts a row's state in a slot that counts and has room."""

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies the rows in `sources` over those in `targets`."""

    @property
    def arrays(self) -> list[mx.array]:
        """The buffers."""


def slots_for(cache: Any, positions: Positions) -> Slots:
    """The batch's counterpart of a model's own cache; TypeError naming a type that cannot batch."""
    if type(cache) is KVCache:
        return KVSlots(positions)
    if type(cache) is RotatingKVCache and cache.keep == 0:
        return KVSlots(positions, window=cache.max_size)
    if type(cache) is ArraysCache:
        return ArraySlots(len(cache.cache))
    if type(cache) is CacheList:
        return ListSlots([slots_for(part, positions) for part in cache.caches])
    raise TypeError(type(cache).__name__)


def why_single(caches: Sequence[object]) -> str:
    """Why a model with these caches runs one row at a time; empty when it batches."""
    try:
        for cache in caches:
            slots_for(cache, Positions())
    except TypeError as error:
        return f"its cache is of a kind that cannot hold several rows ({error})"
    return ""


class KVSlots:
    """Keys and values of all slots, (slots, heads, columns, dim), tokens left-aligned; a ring when `window` is set."""

    def __init__(self, positions: Positions, *, window: int = 0) -> None:
        # None until a row is here; models may replace them, so they are public
        self.keys: Any = None
        self.values: Any = None
        self._positions = positions
        self._window = window
        self._room = (0, 0)

    # -- what models use ----------------------------------------------------------------------------

    @property
    def offset(self) -> int | mx.array:
        """Tokens cached before this step: a number, or an array of one a slot."""
        return self._positions.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Writes one token a slot and returns what attention reads."""
        self._ensure(keys, values, keys.shape[0], self._positions.read_width(self._window))
        self.keys = self._put(self.keys, keys)
        self.values = self._put(self.values, values)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """The columns that live rows have, of the slots that are computed."""
        slots, width = self._positions.slots, self._positions.read_width(self._window)
        return self.keys[:slots, :, :width], self.values[:slots, :, :width]

    def spans(self, mask: mx.array | None) -> mx.array | None:
        """The spans of columns that `mask`, made by `make_mask` in this step, lets each slot see; None if unknown."""
        return self._positions.spans(self._window, mask)

    def shared(self, mask: mx.array | None) -> tuple[int, int]:
        """(leading columns all rows have alike, a slot that holds them), where `mask` hides none of them; else 0."""
        return self._positions.shared_columns(self._window, mask), self._positions.holder

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> mx.array | None:
        """The mask for one new token a slot; `return_array` only matters to longer inputs."""
        del return_array
        if n != 1:
            raise ValueError(f"a decode cache takes one token a slot, not {n}")
        return self._positions.mask(self._window, window_size)

    def size(self) -> int:
        """Tokens of the longest row."""
        return self._positions.width - 1

    def empty(self) -> bool:
        """Whether no row was ever here."""
        return self.keys is None

    @property
    def state(self) -> tuple[Any, Any]:
        """The buffers, as models and `mx.eval` want them."""
        return self.keys, self.values

    # -- what the batch uses ------------------------------------------------------------------------

    def room(self, slots: int, columns: int) -> None:
        self._room = (slots, self._rounded(columns))
        if self.keys is not None and (self.keys.shape[0], self.keys.shape[2]) != self._room:
            self._resize(*self._room)
            mx.eval(self.keys, self.values)  # at once, so that only one layer's old buffer lives beside its new one

    def count(self, slots: int) -> None:
        """Nothing to do: the step's positions say how many slots are read."""

    def place(self, slot: int, piece: Piece) -> None:
        if piece is None:
            return
        keys, values = piece
        self._ensure(keys, values, slot + 1, keys.shape[2])
        self.keys[slot : slot + 1, :, : keys.shape[2]] = keys
        self.values[slot : slot + 1, :, : values.shape[2]] = values

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        if self.keys is None or not sources:
            return
        pick = mx.array(list(sources))
        keys, values = self.keys[pick], self.values[pick]
        mx.eval(keys, values)  # or the buffers would still be read when they are written
        for i, target in enumerate(targets):
            self.keys[target : target + 1] = keys[i : i + 1]
            self.values[target : target + 1] = values[i : i + 1]

    @property
    def arrays(self) -> list[mx.array]:
        return [a for a in (self.keys, self.values) if a is not None]

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(a.nbytes for a in self.arrays)

    # -- inside -------------------------------------------------------------------------------------

    def _put(self, buffer: mx.array, tokens: mx.array) -> mx.array:
        """`buffer` with one token a slot in its column, in place where nothing else reads the buffer.

        Along one axis, because with index arrays a step's 72 writes took 2 to 4 ms longer (H200, no CUDA graphs).
        """
        slots, missing = tokens.shape[0], buffer.shape[0] - tokens.shape[0]
        columns = self._positions.columns(self._window, (buffer.shape[0], *tokens.shape[1:]))
        if isinstance(columns, int):
            buffer[:slots, :, columns : columns + 1] = tokens
            return buffer
        if missing:
            tokens = mx.pad(tokens, [(0, missing), (0, 0), (0, 0), (0, 0)])
        return mx.put_along_axis(buffer, columns, tokens, axis=2)

    def _ensure(self, keys: mx.array, values: mx.array, slots: int, columns: int) -> None:
        """Buffers of the kind of `keys` and `values` with at least so many slots and columns."""
        if self.keys is None:
            self._room = (max(slots, self._room[0]), max(self._rounded(columns), self._room[1]))
            self.keys, self.values = (_empty(a, *self._room) for a in (keys, values))
        elif self.keys.shape[0] < slots or self.keys.shape[2] < columns:
            self._resize(max(slots, self.keys.shape[0]), max(self._rounded(columns), self.keys.shape[2]))

    def _resize(self, slots: int, columns: int) -> None:
        self.keys, self.values = (_resized(a, slots, columns) for a in (self.keys, self.values))

    def _rounded(self, columns: int) -> int:
        rounded = -(-columns // STEP_COLUMNS) * STEP_COLUMNS
        return min(rounded, self._window) if self._window else rounded


def _empty(like: mx.array, slots: int, columns: int) -> mx.array:
    return mx.zeros((slots, like.shape[1], columns, like.shape[3]), dtype=like.dtype)


def _resized(array: mx.array, slots: int, columns: int) -> mx.array:
    kept = array[:slots, :, :columns]
    resized = _empty(array, slots, columns)
    resized[: kept.shape[0], :, : kept.shape[2]] = kept
    return resized


class ArraySlots(ArraysCache):  # type: ignore[misc]
    """Recurrent state: a few arrays (slots, ...), which the model replaces whole at each step."""

    cache: list[Any]

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._slots = 0

    def room(self, slots: int, columns: int) -> None:
        """Nothing to do: there are no columns, and the arrays have the slots that are computed."""

    def count(self, slots: int) -> None:
        self._slots = slots
        self.cache = [None if a is None else _with_slots(a, slots) for a in self.cache]

    def place(self, slot: int, piece: Piece) -> None:
        for i, row in enumerate(piece):
            if row is None and self.cache[i] is None:
                continue  # the model starts this one at zeros by itself
            if self.cache[i] is None:
                self.cache[i] = mx.zeros((self._slots, *row.shape[1:]), dtype=row.dtype)
            self.cache[i][slot : slot + 1] = 0 if row is None else row

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        if not sources:
            return
        for array in self.arrays:
            array[mx.array(list(targets))] = array[mx.array(list(sources))]

    @property
    def arrays(self) -> list[mx.array]:
        return [a for a in self.cache if a is not None]


def _with_slots(array: mx.array, slots: int) -> mx.array:
    """The first `slots` rows of `array`, zeros where it has none: every recurrence starts there."""
    missing = slots - array.shape[0]
    if missing <= 0:
        return array[:slots]
    return mx.concatenate([array, mx.zeros((missing, *array.shape[1:]), dtype=array.dtype)])


class ListSlots(CacheList):  # type: ignore[misc]
    """Several caches in one layer."""

    def __init__(self, parts: Sequence[Slots]) -> None:
        super().__init__(*parts)

    def room(self, slots: int, columns: int) -> None:
        for part in self.caches:
            part.room(slots, columns)

    def count(self, slots: int) -> None:
        for part in self.caches:
            part.count(slots)

    def place(self, slot: int, piece: Piece) -> None:
        for part, inner in zip(self.caches, piece, strict=True):
            part.place(slot, inner)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for part in self.caches:
            part.move(sources, targets)

    @property
    def arrays(self) -> list[mx.array]:
        return [a for part in self.caches for a in part.arrays]
