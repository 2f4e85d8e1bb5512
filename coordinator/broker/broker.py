"""The broker: our own valkey-server on a unix socket, or a Redis a person brings. It keeps nothing."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from coordinator.broker.dispatch import Dispatch
from coordinator.broker.traces import FOLDER_PREFIX, TraceBook, remove_folder
from coordinator.broker.valkey import CONFIG, URL_VARIABLE, config_text, server_program
from coordinator.control.processes import Processes
from coordinator.joining.users import Users
from fleet import codec, keys, leash
from fleet.config import StateDir
from fleet.errors import BrokerError

log = logging.getLogger(__name__)

#: macOS allows 104 bytes for a socket's path, Linux 108.
MAX_SOCKET_PATH_BYTES = 100
#: RQ reads the server's list of clients by splitting it at spaces and lines, and a socket's path stands in there.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/-]+")
#: How long a broker may take to answer for the first time, seconds (0.1 s is usual).
START_S = 15.0
#: How often one is started that ends before it answers.
TRIES = 2
#: How long a broker may take over SIGTERM, seconds; its leash kills it after `leash.GRACE_S`.
STOP_S = 5.0
#: Longest wait for one reply, seconds.
REPLY_S = 5.0
_POLL_S = 0.02
#: Lines of its log told when it does not start.
_LOG_LINES = 5


class Broker:
    """The one broker of a run. With `users` nobody uses it who is none of them; without, whoever reaches its socket."""

    def __init__(
        self, state: StateDir, processes: Processes, url: str | None = None, users: Users | None = None
    ) -> None:
        self._state = state
        self._processes = processes
        self._traces = TraceBook(state)
        self._users = users
        foreign = url or os.environ.get(URL_VARIABLE) or None
        if users is not None and foreign:
            raise BrokerError(f"a fleet of several Macs needs a broker of its own: unset {URL_VARIABLE}")
        #: True when a person brought it: used, but neither started nor stopped
        self.foreign = foreign is not None
        self.epoch = ""
        self._url = foreign or ""
        self._child: subprocess.Popen[bytes] | None = None
        self._server_pid: int | None = None
        self._short_folder: Path | None = None

    @property
    def url(self) -> str:
        """Where clients find it; known once it was started."""
        return self._url

    @property
    def socket(self) -> Path:
        """Where our own listens; the same place after a restart."""
        return self._folder() / "broker.sock"

    @property
    def pid(self) -> int | None:
        """Process id of the server, None before the start and for a foreign one."""
        return self._server_pid

    def start(self) -> None:
        """Starts it, waits until it answers and gives it a new epoch; BrokerError when it does not come up."""
        self._state.make()
        self.epoch = codec.new_epoch()
        if self.foreign:
            self._greet_foreign()
        else:
            self._launch(TRIES)

    def url_of(self, login: str) -> str:
        """Where our own is for a client of this machine that logs in as `user:password`."""
        return f"unix://{login}@{quote(str(self.socket))}"

    def expect(self, worker: str) -> None:
        """A worker is about to use it. In a Redis of a person's own its keys are removed by `stop`."""
        traces = self._traces.read()
        if self.foreign and worker not in traces.workers:
            self._traces.note(replace(traces, workers=(*traces.workers, worker)))

    def alive(self) -> bool:
        """True while our server's process runs; of a foreign one only its replies tell."""
        return self.foreign or (self._child is not None and self._child.poll() is None)

    def restart(self) -> None:
        """Another server with nothing in it, at the same place, under a new epoch."""
        if self.foreign:
            raise BrokerError(f"the Redis that {URL_VARIABLE} names does not answer: start it again")
        self._end()
        self.start()

    def renew_epoch(self) -> None:
        """It lost what was in it and runs on: emptied, or a foreign one that was started anew. Another epoch tells the
        workers. Raises BrokerError."""
        epoch = codec.new_epoch()
        if self.foreign:
            self._traces.note(replace(self._traces.read(), epoch=epoch))
        try:
            with connect(self._url) as client:
                client.set(keys.EPOCH, epoch)
        except redis.RedisError as error:
            raise BrokerError(f"the broker does not answer ({type(error).__name__})") from error
        self.epoch = epoch

    def stop(self) -> None:
        """Ends our server; a foreign one only loses what is ours."""
        if self.foreign:
            self._leave_foreign()
            return
        self._end()
        if self._short_folder is not None:
            remove_folder(str(self._short_folder))
            self._short_folder = None
            self._traces.note(replace(self._traces.read(), folder=""))

    # -- our own ---------------------------------------------------------------------------------

    def _launch(self, tries: int) -> None:
        folder = self._folder()
        socket = folder / "broker.sock"
        socket.unlink(missing_ok=True)
        config = folder / "broker.conf"
        rules = self._users.rules() if self._users else ()
        config.write_text(config_text({**CONFIG, "unixsocket": str(socket), "dir": str(folder)}, rules))
        self._url = self.url_of(self._users.login) if self._users else f"unix://{quote(str(socket))}"
        command = [sys.executable, "-m", "fleet.leash", str(server_program()), str(config)]
        with self._log.open("ab") as log_file:
            self._child = leash.start(command, log=log_file)
        self._processes.record(self._child.pid, "broker")
        if not self._wait_until_it_answers():
            if tries <= 1:
                raise BrokerError(f"the broker did not start; {self._log} ends: {_tail(self._log)}")
            log.warning("the broker ended before it answered: starting another")
            self._launch(tries - 1)

    @property
    def _log(self) -> Path:
        return self._state.logs / "broker.log"

    def _folder(self) -> Path:
        folder = self._state.root.resolve() / "run"
        socket = str(folder / "broker.sock")
        if len(os.fsencode(socket)) > MAX_SOCKET_PATH_BYTES or not _PLAIN_PATH.fullmatch(socket):
            folder = self._short_folder = self._short_folder or self._make_short_folder()
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        return folder

    def _make_short_folder(self) -> Path:
        """Another folder for the socket; that of a run which was killed is removed."""
        traces = self._traces.read()
        remove_folder(traces.folder)
        base = "/tmp" if Path("/tmp").is_dir() else None  # macOS' own temporary folder is long as well
        folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=base)
        self._traces.note(replace(traces, folder=folder))
        return Path(folder)

    def _wait_until_it_answers(self) -> bool:
        """Gives it its epoch as soon as it takes it; False when it ended before that."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                with connect(self._url) as client:
                    info = client.info("server")
                    client.set(keys.EPOCH, self.epoch)
                self._server_pid = int(info["process_id"])
                self._processes.record(self._server_pid, "broker")
                return True
            except redis.RedisError as error:
                if not self.alive():
                    self._end()
                    return False
                if time.monotonic() > deadline:
                    self._end()
                    raise BrokerError(f"the broker does not answer; {self._log} ends: {_tail(self._log)}") from error
            time.sleep(_POLL_S)

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        leash.end(child, STOP_S)
        # A leash that was itself killed leaves its server behind, without a parent but with a record.
        if self._server_pid is not None:
            self._processes.end(self._server_pid)
            self._server_pid = None

    # -- a person's own --------------------------------------------------------------------------

    def _greet_foreign(self) -> None:
        """Checks that it can be used, takes over what a killed run of this folder left in it, sets the epoch."""
        left = self._traces.read()
        try:
            with connect(self._url) as client:
                taken = client.get(keys.EPOCH)
                if taken is not None and taken.decode(errors="replace") != left.epoch:
                    raise BrokerError(
                        f"the Redis that {URL_VARIABLE} names holds keys of a fleet: if no other `fleet` runs on it, "
                        "delete its keys fleet:* and rq:*, or name another database of it"
                    )
                self._purge(left.workers if taken is not None else ())
                self._traces.note(replace(left, epoch=self.epoch, workers=()))
                client.set(keys.EPOCH, self.epoch)
        except redis.RedisError as error:
            raise BrokerError(
                f"the Redis that {URL_VARIABLE} names does not answer ({type(error).__name__}): "
                "start it, or unset the variable to use ours"
            ) from error

    def _purge(self, workers: Sequence[str]) -> None:
        dispatch = Dispatch(self._url)
        try:
            if strange := dispatch.strange_keys():
                raise BrokerError(
                    f"the Redis that {URL_VARIABLE} names has a key {strange[0]} that is not RQ's: "
                    "delete it, or name another database of it"
                )
            for worker in workers:
                dispatch.purge(worker)
        finally:
            dispatch.close()

    def _leave_foreign(self) -> None:
        traces = self._traces.read()
        if not self.epoch or traces.epoch != self.epoch:
            return  # never ours
        try:
            self._purge(traces.workers)
            with connect(self._url) as client:
                client.delete(keys.EPOCH)
        except (redis.RedisError, BrokerError):
            return  # it is gone for now: the next run of this folder removes what is left
        self._traces.note(replace(traces, epoch="", workers=()))


def connect(url: str) -> redis.Redis:
    """A client that says at once when the broker is not there; BrokerError for an address that is none."""
    try:
        client: redis.Redis = redis.Redis.from_url(url, socket_timeout=REPLY_S, retry=Retry(NoBackoff(), 0))
    except ValueError as error:
        raise BrokerError(
            f"{URL_VARIABLE} is no address of a Redis: expected redis://, rediss:// or unix://, or unset it to use ours"
        ) from error
    return client


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return "(nothing)"
    return " / ".join(line.strip() for line in lines[-_LOG_LINES:]) or "(nothing)"
