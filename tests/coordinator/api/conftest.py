"""One coordinator with a tiny model's tokenizer for a file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api_fleet import ApiFleet
from tests.models import tiny_llama


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def fleet(tmp_path: Path, model: Path) -> Iterator[ApiFleet]:
    with ApiFleet(tmp_path, model) as running:
        yield running
