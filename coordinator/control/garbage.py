"""How often Python looks for objects that refer to each other in a circle."""

from __future__ import annotations

import gc

#: New objects before a look. Taking in a row makes about 20 that live for a second, and no circle: at Python's own 700
#: the looks cost 7 us a row of 55, at 20,000 under 1 (two x86 cores), and memory at most a few MB.
NEW_OBJECTS = 20_000


def collect_seldom() -> None:
    """From here on in this process; looks at older objects stay as far apart from these as they were."""
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
