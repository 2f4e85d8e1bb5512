"""A coordinator as joining Macs meet it: broker with users, gate, doorkeeper; and `fleet join` processes with the fake
engine."""

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from coordinator.accounts import Accounts
from coordinator.broker import Broker, connect
from coordinator.certificate import Certificate
from coordinator.dispatch import Dispatch
from coordinator.doorkeeper import Doorkeeper
from coordinator.gate import Gate
from coordinator.processes import Processes
from coordinator.users import Users
from fleet.address import Address
from fleet.config import StateDir
from fleet.credentials import Credentials
from fleet.errors import BrokerError

FAKE_ENGINE = Path(__file__).parent / "fake_engine.py"
ROOT = Path(__file__).parents[1]


class Gatekeeper:
    """What `fleet up` has of joining."""

    def __init__(self, state, port=0):
        self.state = state
        state.make()
        self.processes = Processes(state)
        self.users = Users(Accounts(state))
        self.broker = Broker(state, self.processes, users=self.users)
        self.broker.start()
        self.certificate = Certificate.of(state)
        self.gate = Gate(state, self.processes, self.broker.socket, self.certificate, port=port, local=True)
        self.gate.start()
        self.client = connect(self.broker.url)
        self.dispatch = Dispatch(self.broker.url)
        self.joined = []
        #: whether the doorkeeper does its work
        self.looks = True
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self):
        doorkeeper = Doorkeeper(self.client, self.users, coordinator="studio", api_port=4433)
        while not self._closed.wait(0.02):
            with suppress(BrokerError):  # it is being restarted
                self.joined += doorkeeper.poll() if self.looks else []

    @property
    def address(self):
        return Address("127.0.0.1", self.gate.port)

    @property
    def token(self):
        return self.users.accounts.token(self.certificate.fingerprint)

    @property
    def line(self):
        """As `fleet up` prints it."""
        return self.token.format(self.address)

    def kick(self, wid):
        self.users.remove(self.client, wid)
        self.dispatch.purge(wid)

    def close(self):
        self._closed.set()
        self._thread.join()
        self.gate.stop()
        self.dispatch.close()
        self.client.close()
        self.broker.stop()


class Mac:
    """A state folder from which `fleet` commands are run."""

    def __init__(self, folder):
        self.state = StateDir(folder)
        self.processes = []

    def environment(self, more):
        outside = {name: value for name, value in os.environ.items() if not name.startswith("FLEET_")}
        engine = f'["{sys.executable}", "{FAKE_ENGINE}"]'
        return {**outside, "PYTHONPATH": str(ROOT), "FLEET_TEST_ENGINE": engine, **more}

    def start(self, *words, **environment):
        """A `fleet` command that goes on running; its lines are in `out`."""
        self.state.root.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "fleet", *words, "--state-dir", str(self.state.root)]
        with self.out.open("ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=self.environment(environment))
        self.processes.append(process)
        return process

    def call(self, *words, **environment):
        """A `fleet` command that ends soon."""
        command = [sys.executable, "-m", "fleet", *words, "--state-dir", str(self.state.root)]
        return subprocess.run(
            command, capture_output=True, text=True, env=self.environment(environment), timeout=60, check=False
        )

    @property
    def out(self):
        return self.state.root / "out.log"

    def says(self, text):
        return self.out.exists() and text in self.out.read_text()

    @property
    def credentials(self):
        return Credentials.kept(self.state)

    @property
    def log(self):
        return (self.state.root / "worker" / "log" / "worker.log").read_text()

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def until(what, within_s=15.0):
    """Waits until `what()` is true; its value."""
    deadline = time.monotonic() + within_s
    while not (value := what()):
        assert time.monotonic() < deadline, "nothing came in time"
        time.sleep(0.02)
    return value
