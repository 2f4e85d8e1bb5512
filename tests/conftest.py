"""What all tests share: engines of one BLAS thread each, since tests run beside each other on few cores, and an
environment that names no fleet."""

import os
from collections.abc import Iterator

import pytest

# OpenBLAS threads spin while they wait: with more of them than cores everything is about 7x slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_configure() -> None:
    """A person who runs the tests may have set variables for a fleet of their own."""
    for name in _of_fleets():
        del os.environ[name]


@pytest.fixture(autouse=True)
def leaves_the_environment() -> Iterator[None]:
    """A test that set one of ours for good would break others, by the order in which they happen to run."""
    yield
    assert _of_fleets() == [], "set with monkeypatch what a test needs"


def _of_fleets() -> list[str]:
    return [name for name in os.environ if name.startswith("FLEET_")]
