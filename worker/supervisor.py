"""`python -m worker.supervisor`: one machine's worker process. It outlives brokers, RQ workers and engines."""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

import redis

from fleet import leash
from fleet.config import StateDir
from fleet.errors import Exit
from fleet.messages import Host, Stop
from worker.agent import Agent, Tickets
from worker.blas import engine_environment
from worker.client import AGAIN_S, connect
from worker.control import Control
from worker.desk import Desk
from worker.engine_process import Launch, default_command
from worker.heartbeat import Heartbeat, Listener
from worker.keeper import Keeper
from worker.machine import host
from worker.pauses import Conditions, Pauses, conditions
from worker.pump import Pump

log = logging.getLogger(__name__)

#: How long a stopping worker waits for the coordinator to take its last results, seconds.
TAKEN_S = 10.0
#: An RQ worker that ends within this time, though its broker answers, has failed, seconds.
LASTING_S = 10.0
#: So many that failed in a row are the end of this process; the coordinator may start another, not for ever.
MAX_FAILURES = 5
#: The environment variable that names the broker where `--broker` does not: a URL may hold a password, and a
#: command line is there for all to read.
URL_VARIABLE = "FLEET_REDIS_URL"


class Supervisor:
    """Wires the threads together and ends them in order."""

    def __init__(
        self,
        connect: Callable[[], redis.Redis],
        worker: str,
        launch: Launch,
        *,
        cap: int = 0,
        host: Host | None = None,
        listener: Listener | None = None,
        look: Callable[[], Conditions] | None = None,
        works_on_battery: bool = False,
    ) -> None:
        """`connect` makes clients of the broker. `look`, where it is given, tells what may pause this worker."""
        self._nonce = secrets.token_hex(4)
        self._connect = connect
        self._client = connect()
        self._desk = Desk(worker, self._nonce, cap=cap, host=host)
        self._tickets = Tickets()
        self._agent: Agent | None = None
        self._heartbeat = Heartbeat(self._desk, self._tickets, self._client, self._on_refused, listener)
        self._pump = Pump(self._desk, self._tickets, self._client, lambda: self._agent)
        self._control = Control(self._desk, self._client)
        self._keeper = Keeper(self._desk, launch)
        self._pauses = Pauses(self._desk, look, works_on_battery=works_on_battery) if look else None
        #: a signal's number, or None when all is wound down
        self._events: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._status = 0

    def run(self) -> int:
        """Works until stopped; the exit status, `Exit.AUTH` when the broker does not know us any more."""
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        keeper = self._thread("engine-keeper", self._keeper.run)
        for name, work in (
            ("heartbeat", self._heartbeat.run),
            ("pump", self._pump.run),
            ("control", self._control.run),
            ("agent", self._work),
        ):
            self._thread(name, work)
        if self._pauses is not None:
            self._thread("pauses", self._pauses.run)
        stops = 0
        while (event := self._events.get()) is not None:
            stops += 1
            if stops > 1:
                log.warning("signal %d again: ending at once", event)
                self.kill_engine()
                os._exit(Exit.INTERRUPTED)
            log.info("signal %d: finishing the rows in the batch", event)
            self._desk.obey(Stop())
        if self._status == Exit.AUTH:
            self.kill_engine()  # nobody would take its rows
        self._desk.close()
        self._heartbeat.close()
        keeper.join(leash.GRACE_S * 2)
        for number, handler in before.items():
            signal.signal(number, handler)
        log.info("stopped")
        return self._status

    def kill_engine(self) -> None:
        """Ends the engine at once, as the last thing before this process ends."""
        self._keeper.kill()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._events.put(number)  # which is safe in a handler; a lock of ours would not be

    def _on_refused(self) -> None:
        log.error("the broker does not know this worker any more, or is of another version")
        self._status = Exit.AUTH
        self._events.put(None)

    def _work(self) -> None:
        """RQ workers one after the other, until the desk stops or they are of no use; then the end."""
        made = failures = 0
        while not self._desk.stopping:
            made += 1
            failures = failures + 1 if self._fails(f"{self._desk.worker}.{self._nonce}-{made}") else 0
            if failures >= MAX_FAILURES:
                log.error("%d RQ workers failed at once: giving up", failures)
                self._status = 1
                self._desk.obey(Stop())
            self._desk.await_closed(AGAIN_S if not self._desk.stopping else 0)
        self._wind_down()
        self._events.put(None)

    def _fails(self, name: str) -> bool:
        """Runs an RQ worker to its end; True when that came at once and the broker is not to blame."""
        began_s = time.monotonic()
        try:
            if not self._heartbeat.beat():
                return False
            epoch = self._desk.epoch
            self._work_once(name)
            self._client.ping()  # RQ swallows what ends its loop
            if self._desk.epoch != epoch:
                return False
        except redis.RedisError as error:
            log.warning("broker lost: %s", type(error).__name__)
            return False
        except Exception:
            log.exception("the RQ worker failed; another follows")
        return not self._desk.stopping and time.monotonic() - began_s < LASTING_S

    def _work_once(self, name: str) -> None:
        """One RQ worker, until its broker goes or changes or the desk stops."""
        client = self._connect()  # its own: RQ changes the timeouts of the one it is given
        announce, catch_up = self._heartbeat.beat, self._control.catch_up
        agent = Agent(self._desk, self._tickets, client, name, announce=announce, catch_up=catch_up)
        agent.recover()
        before, self._agent = self._agent, agent  # the pump uses the last one even after its loop ended
        if before is not None:
            retire(before.connection)
        agent.work(logging_level="WARNING")

    def _wind_down(self) -> None:
        """Waits for the rows in the batch, then, not for ever, for the coordinator to take them."""
        while not self._desk.await_idle(60.0):
            log.info("waiting for the rows in the batch")
        if not self._desk.await_taken(TAKEN_S):
            log.warning("the coordinator did not take the last results in %.0f s", TAKEN_S)

    def _thread(self, name: str, work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=lambda: lasting(work, self._desk), name=name, daemon=True)
        thread.start()
        return thread


def retire(client: redis.Redis) -> None:
    """Closes the connections of a client that nobody uses: the pump may still finish with one what it has begun."""
    client.connection_pool.disconnect(inuse_connections=False)


def lasting(work: Callable[[], object], desk: Desk) -> None:
    """Does a thread's work until it returns. A bug of ours ends no thread that the others count on: it is logged, and
    the work begun again."""
    while True:
        try:
            work()
            return
        except Exception:
            log.exception("this thread met a bug, and goes on")
        if desk.await_closed(AGAIN_S):
            return


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the command line, holds the leash, works."""
    args = _parser().parse_args(argv)
    url = args.broker or os.environ.get(URL_VARIABLE)
    os.environ.pop(URL_VARIABLE, None)  # no engine needs it
    if not url:
        print(f"worker: no broker: give --broker or set {URL_VARIABLE}", file=sys.stderr)
        return 2
    state = StateDir(Path(args.state))
    state.make()
    logging.basicConfig(
        filename=state.logs / "worker.log",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(threadName)s %(message)s",
    )
    launch = Launch(
        command=tuple(args.engine_command or default_command(sys.executable)),
        log=state.logs / "engine.log",
        key_log=state.logs / "engine.keys",
        hash_cache=state.root / "hashes.json",
        knees=state.knees,
        pids=state.pids,
        memory_bytes=args.memory,
        environment=engine_environment,
    )
    supervisor = Supervisor(
        partial(connect, url),
        args.worker_id,
        launch,
        cap=args.cap,
        host=host(args.name),
        look=partial(conditions, state.root) if args.pause else None,
        works_on_battery=args.on_battery,
    )
    leash.hold(last=supervisor.kill_engine)
    return supervisor.run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m worker.supervisor", description=__doc__)
    parser.add_argument("--broker", metavar="URL", help=f"where the broker is; {URL_VARIABLE} when not given")
    parser.add_argument("--worker-id", required=True, help="this worker's name in the fleet")
    parser.add_argument("--state", required=True, metavar="DIR", help="the state folder")
    parser.add_argument("--engine-command", type=json.loads, metavar="JSON", help="program and first arguments")
    parser.add_argument("--cap", type=int, default=0, help="rows decoding together at most, 0: the engine chooses")
    parser.add_argument("--memory", type=int, default=0, metavar="BYTES", help="what the engine may use, 0: it chooses")
    parser.add_argument("--name", default="", help="what people call this machine, its own name when not given")
    parser.add_argument(
        "--pause", action="store_true", help="rest on battery, in heat, short of memory, and on request"
    )
    parser.add_argument("--on-battery", action="store_true", help="with --pause: work on battery all the same")
    return parser


if __name__ == "__main__":
    sys.exit(main())
