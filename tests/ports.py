"""Ports where a coordinator can be started again after it was ended.

A port that the kernel chose (0) will not do: it gives the same to any connection made while nobody listens there.
"""

from __future__ import annotations

import os
import random
import socket

#: What a gate needs, and its API's two ports behind it.
TOGETHER = 3
#: Of one test process, and of all: below the range of the kernel's own, which begins at 32,768 on Linux and at 49,152
#: on macOS.
SHARE = range(0, 1500, TOGETHER)
ALL = range(11_000, 32_000, len(SHARE) * TOGETHER)


def free_port() -> int:
    """The first of some that are free, and that no test process beside this one takes."""
    first = ALL[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % len(ALL)]
    places = [first + place for place in SHARE]
    random.SystemRandom().shuffle(places)  # other runs on this machine have the same share
    return next(port for port in places if all(_is_free(port + n) for n in range(TOGETHER)))


def _is_free(port: int) -> bool:
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((host, port))
                probe.listen()  # with SO_REUSEADDR two may have bound it, not two listen
        except OSError:
            if family == socket.AF_INET:
                return False
    return True
