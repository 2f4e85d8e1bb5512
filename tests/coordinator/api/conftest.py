"""One coordinator with a tiny model's tokenizer for a file of tests; its uploads are gone after each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api_fleet import ApiFleet
from tests.models import tiny_llama


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[ApiFleet]:
    with ApiFleet(tmp_path_factory.mktemp("fleet"), model) as running:
        yield running


@pytest.fixture
def fleet(shared: ApiFleet) -> Iterator[ApiFleet]:
    yield shared
    shutil.rmtree(shared.state.root / "uploads", ignore_errors=True)
