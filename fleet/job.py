"""What is worked on: the lifecycles, the sampling of a group of rows, and the key that names a computation."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from enum import IntEnum, StrEnum

KEY_BYTES = 16


class Task(StrEnum):
    """What a job does with each request."""

    GENERATE = "generate"
    SUMMARIZE = "summarize"
    CLASSIFY = "classify"
    EMBED = "embed"


class JobState(StrEnum):
    """Lifecycle of a job: RUNNING -> FINISHED | CANCELLED | FAILED; the same command takes it up again."""

    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    #: of a fleet: its input or its model is unusable
    FAILED = "failed"


class RequestState(IntEnum):
    """Lifecycle of a request: OPEN -> one of TERMINAL, once (a rerun reopens ERROR and QUARANTINED)."""

    OPEN = 0
    DONE = 1
    ERROR = 2
    QUARANTINED = 3


class RowState(IntEnum):
    """Lifecycle of a row: OPEN -> DONE | ERROR | QUARANTINED; DONE never changes."""

    OPEN = 0
    DONE = 1
    ERROR = 2
    QUARANTINED = 3


class Finish(StrEnum):
    """Why a row ended."""

    #: an end-of-sequence token, a stop string, or a complete label
    STOP = "stop"
    #: max_tokens reached
    LENGTH = "length"
    #: max_tokens reached before the model had thought to an end: there is no answer
    THINKING = "length_in_thinking"
    #: ended at once: the model had nothing to say
    EMPTY = "empty"
    #: the row could not be run; `error` says why
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """How a text becomes a vector; rows with one are embedded and decode nothing."""

    #: of the numbers that are kept: float32 or float16
    dtype: str = "float32"
    #: the first so many are kept and made unit length again; 0 keeps all
    dimensions: int = 0
    #: `EncoderFolder.hash`: an engine whose folder has another refuses the row; empty where it may have any
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How next tokens are chosen; rows of equal sampling form a group and share one sampler."""

    #: 0 is greedy
    temperature: float = 0.0
    #: nucleus mass kept, (0, 1]
    top_p: float = 1.0
    #: with temperature > 0 each row's draws follow from this and the row's key alone; None draws afresh
    seed: int | None = None
    #: taken off the logit of each token that is in the answer already, once ...
    presence_penalty: float = 0.0
    #: ... and for each time it is there
    frequency_penalty: float = 0.0
    #: divides the logit of tokens in prompt and answer where it is positive, else multiplies it; 1 changes nothing
    repetition_penalty: float = 1.0
    #: texts that end an answer and are not part of it
    stop: tuple[str, ...] = ()
    #: for classify: the allowed answers ...
    labels: tuple[str, ...] = ()
    #: ... and each one's token ids, in the order of `labels`
    label_tokens: tuple[tuple[int, ...], ...] = ()
    #: set when the rows are to be embedded; nothing else of the sampling counts then
    embedding: Embedding | None = None


def canonical(value: object) -> bytes:
    """JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHeader:
    """Everything but the tokens that changes a row's answer."""

    #: sha256 of the weight files, hex
    model_hash: str
    #: sha256 of tokenizer and chat template, hex
    tokenizer_hash: str
    sampling: Sampling
    #: new tokens at most
    max_tokens: int
    #: at temperature > 0 equal prompts are separate draws, counted from 0; always 0 when greedy
    duplicate: int = 0
    #: what `--fresh` adds so that nothing recorded is reused
    salt: str = ""


class KeyMaker:
    """Makes row keys; the header is hashed once and each row adds its tokens."""

    def __init__(self, header: KeyHeader) -> None:
        self._salt = header.salt
        self._hash = hashlib.sha256(canonical(asdict(replace(header, salt=""))) + b"\0")

    def key(self, tokens: bytes) -> bytes:
        """The 16-byte key of the row with these `tokens` (uint32, little endian)."""
        row = self._hash.copy()
        row.update(tokens)
        return salted(row.digest()[:KEY_BYTES], self._salt)


def salted(key: bytes, salt: str) -> bytes:
    """`key` under a salt, and back: `--fresh` makes other rows of the same computations, with the same draws."""
    if not salt:
        return key
    mask = hashlib.sha256(salt.encode()).digest()[:KEY_BYTES]
    return bytes(a ^ b for a, b in zip(key, mask, strict=True))
