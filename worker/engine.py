"""The engine: one model in a child process, decoding continuously. `python -m worker.engine --fd N --model ...`."""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from fleet.errors import DecodeError, FleetError, ModelError
from fleet.messages import Message, Ready, Refused
from worker import memory
from worker.caps import Bounds, Caps, first_guess, promised
from worker.decoder import Decoder
from worker.device import subject, working_set_bytes
from worker.embedding_engine import start_embedding
from worker.embedding_loop import EmbeddingLoop
from worker.embedding_model import load_embedder
from worker.faults import Faults
from worker.gauge import Gauge
from worker.knee import Curve
from worker.knee_store import KneeStore
from worker.link import Link
from worker.loop import Inbox, Loop
from worker.models import LoadedModel, load, most_prefill
from worker.prefixes import PrefixStore
from worker.probe import provisional_cap
from worker.solo import make_generation
from worker.sweep import Sweep

#: Exit status when a step raised: the agent takes it as a crash.
EXIT_CRASH = 70
#: Exit status after Refused.
EXIT_REFUSED = 1


def start(
    loaded: LoadedModel,
    *,
    cap: int,
    memory_bytes: int,
    inbox: Inbox,
    send: Callable[[Message], None],
    log_key: Callable[[bytes], None],
    faults: Faults,
    knees: Path | None = None,
) -> Loop:
    """The loop for `loaded`, after it has said Ready; ModelError when memory holds no row beside it. 0 for `cap` or
    `memory_bytes` is our own choice.

    `knees` is the file that remembers what was measured, None to measure anew.
    """
    working_set = memory_bytes or working_set_bytes()
    activations = max(0, mx.get_peak_memory() - loaded.weight_bytes)
    budget = memory.budget_bytes(
        working_set_bytes=working_set, weight_bytes=loaded.weight_bytes, activation_bytes=activations
    )
    limits = memory.limits(context_tokens=loaded.context_tokens, kv_bytes=loaded.kv_bytes, budget_bytes=budget)
    if problem := memory.model_refusal(
        working_set_bytes=working_set,
        weight_bytes=loaded.weight_bytes,
        activation_bytes=activations,
        limits=limits,
    ):
        raise ModelError(problem)
    store = KneeStore(knees, subject(loaded.hash))
    curves = store.load()
    caps = make_caps(loaded, curves, limits, given=cap, guess=lambda: provisional_cap(loaded, budget))
    decode_tps, prefill_tps = promised(curves, caps.provisional)
    ready = Ready(
        model_hash=loaded.hash,
        cap=caps.provisional,
        kv_bytes=loaded.kv_bytes,
        budget_bytes=budget,
        context_tokens=loaded.context_tokens,
        single=loaded.single,
        decode_tps=decode_tps,
        prefill_tps=prefill_tps,
    )
    mx.clear_cache()
    mx.reset_peak_memory()
    generation = make_generation(
        loaded.model,
        single=bool(loaded.single),
        slots=ready.cap,
        prefill_rows=loaded.prefill.rows,
        prefill_tokens=loaded.prefill.tokens,
        eos=loaded.eos,
    )
    prefixes = PrefixStore(
        generation.compute_prefix, limit_bytes=int(budget * memory.PREFIX_SHARE), kv_bytes=loaded.kv_bytes
    )
    send(ready)
    return Loop(
        ready,
        decoder=Decoder(generation, loaded.text, loaded.eos, prefixes, loaded.thinking),
        limits=limits,
        vocabulary=loaded.vocabulary,
        caps=caps,
        sweep=None if caps.fixed else Sweep(Gauge(loaded.model, vocabulary=loaded.vocabulary), caps, store),
        inbox=inbox,
        send=send,
        log_key=log_key,
        faults=faults,
    )


def make_caps(
    loaded: LoadedModel, curves: dict[int, Curve], limits: memory.Limits, *, given: int, guess: Callable[[], int]
) -> Caps:
    """The caps of an engine; `guess` looks for a first one where none was given or measured before."""
    fixed = 1 if loaded.single else given
    return Caps(
        bounds=Bounds(start=loaded.prefill, most=most_prefill(), total_tokens=limits.budget_tokens),
        provisional=fixed or first_guess(curves) or guess(),
        fixed=fixed,
        curves=curves,
    )


def main(argv: Sequence[str]) -> int:
    """Runs an engine on the link at --fd until the link ends."""
    args = _parser().parse_args(argv)
    os.dup2(2, 1)  # a library's print must not land in a pipe that someone reads
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started us
    mx.random.seed(int.from_bytes(os.urandom(4), "little"))
    link = Link(socket.socket(fileno=args.fd))
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_read, args=(link, inbox), name="link", daemon=True).start()
    try:
        _loop(args, inbox, link).run()
    except FleetError as error:
        link.send(Refused(reason=str(error)))
        return EXIT_REFUSED
    except Exception as error:
        _confess(error)
    os._exit(EXIT_CRASH)


def _loop(args: argparse.Namespace, inbox: Inbox, link: Link) -> Loop | EmbeddingLoop:
    """Loads the model and says Ready; FleetError when it cannot be served."""
    loaded: Any = (load_embedder if args.embed else load)(args.model, args.hash, args.hash_cache)
    key_log = os.open(args.key_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    begin: Callable[..., Loop | EmbeddingLoop] = start_embedding if args.embed else start
    return begin(
        loaded,
        cap=args.cap,
        memory_bytes=args.memory,
        inbox=inbox,
        send=link.send,
        log_key=lambda key: _append(key_log, key),
        faults=Faults.from_environment(os.environ),
        knees=args.knees,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m worker.engine", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited end of a socketpair, see worker.link")
    parser.add_argument("--model", required=True, help="folder or hub id")
    parser.add_argument("--embed", action="store_true", help="make vectors of texts")
    parser.add_argument("--hash", default="", help="sha256 that the weight files must have, hex")
    parser.add_argument("--hash-cache", type=Path, required=True, help="file that remembers hashes of weights")
    parser.add_argument("--key-log", type=Path, required=True, help="file that gets the key of each finished row")
    parser.add_argument("--cap", type=int, default=0, help="rows decoding together; 0 measures")
    parser.add_argument("--knees", type=Path, help="file that remembers what was measured")
    parser.add_argument("--memory", type=int, default=0, help="working set in bytes; 0 asks the machine")
    return parser


def _read(link: Link, inbox: Inbox) -> None:
    """Moves messages to the inbox; ends the process when the other side is gone or talks nonsense."""
    try:
        while (message := link.receive()) is not None:
            inbox.put(message)
    except DecodeError as error:
        print(f"engine: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_CRASH)
    os._exit(0)


def _append(fd: int, key: bytes) -> None:
    os.write(fd, key.hex().encode() + b"\n")


def _confess(error: Exception) -> None:
    """Writes where a step failed to the log: never a message that could quote a row."""
    traceback.print_tb(error.__traceback__)
    said = f": {error}" if isinstance(error, (RuntimeError, MemoryError)) else ""
    print(f"engine: {type(error).__name__}{said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
