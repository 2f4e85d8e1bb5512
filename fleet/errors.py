"""Every error a person can meet, under one root; each says what to do next and carries its exit code."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class Exit(IntEnum):
    """Exit codes of the `fleet` command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    FAILED_REQUESTS = 3
    AUTH = 4
    NO_COORDINATOR = 5
    NO_WORKERS = 6
    INTERRUPTED = 130


class FleetError(Exception):
    """Root of all errors raised on purpose; its text is a sentence a person can act on."""

    exit_code: ClassVar[Exit] = Exit.ERROR


class UsageError(FleetError):
    """Raised when the command or its input as a whole cannot be worked on."""

    exit_code = Exit.USAGE


class ModelError(FleetError):
    """Raised when a model cannot be found, read, or does what a job asks."""


class StateLockedError(FleetError):
    """Raised when another process works on the same state folder."""


class StorageError(FleetError):
    """Raised when the ledger or an output cannot be written: disk full, no permission, gone."""


class BrokerError(FleetError):
    """Raised when the broker cannot be started or reached."""


class AuthError(FleetError):
    """Raised when a token, a certificate or a worker is not the right one; the text says which."""

    exit_code = Exit.AUTH


class NoCoordinatorError(FleetError):
    """Raised when no fleet is found; the text lists what names one."""

    exit_code = Exit.NO_COORDINATOR


class NoWorkersError(FleetError):
    """Raised when no worker is left that could run what is open."""

    exit_code = Exit.NO_WORKERS


class EngineError(FleetError):
    """Raised when an engine refuses or fails what it was given."""


class DecodeError(FleetError):
    """Raised when bytes on a wire are not a message of this version; nothing is guessed."""


class InterruptedRunError(FleetError):
    """Raised when a person stopped the run; the text says how to go on."""

    exit_code = Exit.INTERRUPTED


class RequestError(FleetError):
    """Raised when one request of a backlog cannot be run; the sentence is shown after its file:line."""
