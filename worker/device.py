"""What MLX says of the device it computes on."""

from __future__ import annotations

import os
from importlib.metadata import version

import mlx.core as mx

from worker import memory
from worker.knee_store import Subject
from worker.machine import describe


def subject(model_hash: str) -> Subject:
    """What figures measured here depend on."""
    device = f"{mx.default_device().type.name} {mx.device_info().get('device_name', '')}".strip()
    return Subject(machine=describe(device, os.environ), model_hash=model_hash, mlx=version("mlx"))


def working_set_bytes() -> int:
    """Bytes this machine lets MLX work with."""
    info = mx.device_info()
    for name in ("max_recommended_working_set_size", "memory_size", "total_memory"):
        if isinstance(info.get(name), int):
            return int(info[name])
    return memory.read_linux_working_set_bytes(mx.get_active_memory())
