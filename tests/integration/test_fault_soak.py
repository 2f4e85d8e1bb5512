"""Every class of fault against a fleet of real processes; after each the ledger is whole and the output undisturbed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgpack
import pytest
import redis

from fleet import codec, keys
from fleet.job import Finish
from fleet.messages import Crashed, Finished, Returned, RowResult, Stop
from tests.fault_yard import FaultYard, away
from tests.models import tiny_llama
from tests.relay import Relay
from tests.runner import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
SEED = 20261130


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[FaultYard]:
    with FaultYard(tmp_path / "yard", FAKE_STEP_S="0.05") as yard:
        yield yard


def test_a_broker_wiped_again_and_again_loses_nothing(yard: FaultYard, model: Path) -> None:
    yard.begin("ab")
    job = yard.order(model, 400, SEED)
    for _ in range(3):
        yard.grows(job)
        with yard.broker() as client:
            client.flushall()
        began = time.monotonic()
        yard.grows(job, 24)
        print(f"24 rows more {time.monotonic() - began:.1f} s after the wipe")
    yard.await_over(job)
    yard.check(job, "wiped")
