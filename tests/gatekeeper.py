"""A coordinator as joining Macs meet it: broker with users, gate, doorkeeper; and `fleet join` processes with the fake
engine."""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from coordinator.broker.broker import Broker, connect
from coordinator.broker.dispatch import Dispatch
from coordinator.control.processes import Processes
from coordinator.joining.accounts import Accounts
from coordinator.joining.certificate import Certificate
from coordinator.joining.doorkeeper import Doorkeeper
from coordinator.joining.gate import Gate
from coordinator.joining.users import Users
from fleet import keys
from fleet.address import Address
from fleet.config import StateDir
from fleet.credentials import Credentials
from fleet.errors import BrokerError
from fleet.messages import Finished, Returned
from fleet.pids import read
from tests.ports import free_port
from tests.worker_process import FAKE_ENGINE, shard, until
from worker.seat import home

ROOT = Path(__file__).parents[1]


class Gatekeeper:
    """What `fleet up` has of joining."""

    def __init__(self, state):
        self.state = state
        state.make()
        self.processes = Processes(state)
        self.users = Users(Accounts(state))
        self.broker = Broker(state, self.processes, users=self.users)
        self.broker.start()
        self.certificate = Certificate.of(state)
        self.gate = self.new_gate(free_port())
        self.gate.start()
        self.client = connect(self.broker.url)
        self.dispatch = Dispatch(self.broker.url)
        self.joined = []
        #: answers by row, and rows given back
        self.done = {}
        self.returned = set()
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

    def new_gate(self, port):
        return Gate(self.state, self.processes, self.broker.socket, self.certificate, port=port, local=True)

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

    def send(self, wid, number, ids, **more):
        """Sends a worker a shard."""
        self.dispatch.send(wid, replace(shard(number, ids, **more), id=keys.shard(wid, number)))

    def take(self, wid):
        """What a worker has told and was not taken yet."""
        entries = self.dispatch.results(wid, 1000)
        self.dispatch.delete(wid, [entry for entry, _ in entries])
        messages = [message for _, message in entries]
        self.done.update(
            (row.id, row.text) for message in messages if isinstance(message, Finished) for row in message.rows
        )
        self.returned.update(row for message in messages if isinstance(message, Returned) for row in message.rows)
        return messages

    def has(self, wid, ids):
        """Whether the worker has told these rows' answers, this time or before."""
        self.take(wid)
        return self.done.keys() >= set(ids)

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

    @property
    def said(self):
        return self.out.read_text() if self.out.exists() else ""

    def says(self, text):
        """Waits until the command has said so."""
        until(lambda: text in self.said)

    def engine(self):
        """Process id of the engine, once there is one."""
        return until(lambda: [one.pid for one in read(home(self.state).pids) if one.role == "engine"])[-1]

    @property
    def credentials(self):
        return Credentials.kept(self.state)

    @property
    def log(self):
        return (home(self.state).logs / "worker.log").read_text()

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
