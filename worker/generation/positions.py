"""Where each slot's next token goes: the host-side truth that all layers of a batch share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx


class Positions:
    """One decode step's positions: every slot's cached tokens, and the arrays the layers derive from them.

    A slot's tokens lie left-aligned: token p in column p, or in column p modulo the window of a ring. So a row that
    joins or leaves moves no other row, and the width read is that of the longest live row.
    """

    def __init__(self) -> None:
        #: slots computed in this step
        self.slots = 0
        #: columns the longest live row has after this step
        self.width = 0
        #: tokens cached before this step: one number when all live rows agree, else one per slot
        self.offset: int | mx.array = 0
        #: first of the live slots
        self.holder = 0
        # leading tokens that all live rows have in common
        self._shared = 0
        self._cached: list[int] = []
        # by (window, reach)
        self._masks: dict[tuple[int, int], mx.array] = {}
        self._derived: dict[tuple[str | int, ...], mx.array] = {}

    def set(self, cached: Sequence[int | None], *, shared: int = 0) -> None:
        """Starts a step: `cached[slot]` is its number of cached tokens, None for a slot nobody reads.

        The first `shared` tokens are the same in all live slots.
        """
        live = [n for n in cached if n is not None]
        self.holder = next((slot for slot, n in enumerate(cached) if n is not None), 0)
        self._shared = shared
        longest = max(live, default=0)
        self.slots = len(cached)
        self.width = longest + 1
        self._cached = [n or 0 for n in cached]
        uniform = all(n == longest for n in live)
        self.offset = longest if uniform else mx.array(self._cached)
        self._masks, self._derived = {}, {}

    def columns(self, window: int, shape: tuple[int, ...]) -> int | mx.array:
        """The column each slot writes: a number, or an array of `shape`, (slots, ...); `window` 0 is no ring.

        `shape` may have more slots than are computed: what the others' column is, is of no account.
        """
        if isinstance(self.offset, int):
            return self.offset % window if window else self.offset
        return self._once(("columns", window, *shape), lambda: self._columns(window, shape))

    def _columns(self, window: int, shape: tuple[int, ...]) -> mx.array:
        columns = [n % window if window else n for n in self._cached] + [0] * (shape[0] - self.slots)
        return mx.broadcast_to(mx.array(columns).reshape(-1, *[1] * (len(shape) - 1)), shape)

    def read_width(self, window: int) -> int:
        """Columns to read in this step."""
        return min(self.width, window) if window else self.width

    def mask(self, window: int, sight: int | None) -> mx.array | None:
        """The attention mask of this step, broadcastable to (slots, heads, 1, columns); None when all is seen.

        `window` is the ring's size (0 is no ring), `sight` how many tokens back a row may look (None is all).
        """
        width = self.read_width(window)
        reach = min(sight or width, width)
        if isinstance(self.offset, int) and reach >= width:
            return None
        if (window, reach) not in self._masks:
            self._masks[window, reach] = self._mask(window, width, reach)
        return self._masks[window, reach]

    def spans(self, window: int, mask: mx.array | None) -> mx.array | None:
        """What a mask of this step lets each slot see, as its first column and the one after its last: (slots, 2).

        None for a mask that is not from `mask`, or has gaps.
        """
        width = self.read_width(window)
        if mask is None:
            return self._once(("all", window, width), lambda: mx.array([[0, width]] * self.slots, dtype=mx.int32))
        found = (reach for (ring, reach), array in self._masks.items() if array is mask and ring == window)
        reach = next(found, None)
        if reach is None or (window and reach < width):
            return None
        return self._once(("spans", window, reach), lambda: self._spans(width, reach))

    def shared_columns(self, window: int, mask: mx.array | None) -> int:
        """Leading columns that are the same in all live slots and that a mask of this step lets each of them see."""
        sees_all = mask is None or mask is self._masks.get((0, self.width))
        return self._shared if sees_all and not window else 0

    def _spans(self, width: int, reach: int) -> mx.array:
        ends = [min(n + 1, width) for n in self._cached]
        return mx.array([[max(0, end - reach), end] for end in ends], dtype=mx.int32)

    def _mask(self, window: int, width: int, reach: int) -> mx.array:
        offset = mx.array(self.offset).reshape(-1, 1, 1, 1)
        age = offset - mx.arange(width)
        if window:
            age = age % window  # a ring's column holds the newest token that fits it
        seen: mx.array = (age >= 0) & (age <= offset)
        return seen & (age < reach) if reach < width else seen

    def _once(self, name: tuple[str | int, ...], make: Callable[[], mx.array]) -> mx.array:
        if name not in self._derived:
            self._derived[name] = make()
        return self._derived[name]
