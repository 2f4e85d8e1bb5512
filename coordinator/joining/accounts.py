"""The fleet's secrets and its workers, on disk: what a coordinator that starts again must know of them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet import private, token
from fleet.config import StateDir
from fleet.errors import StorageError
from fleet.token import Token


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What only the coordinator and those it invited know."""

    #: lets a Mac ask to join
    secret: str = field(repr=False)
    #: bearer key of the API
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A worker that has joined at some time."""

    #: the worker's id, also its user of the broker
    wid: str
    name: str
    #: sha256 of its password for the broker and the API, hex. The password is random, so that its hash is as good
    #: a secret; a copy of the file lets nobody in
    password: str = field(repr=False)
    #: sha256 of what the Mac alone knows, hex: another that claims its id is refused
    proof: str = field(repr=False)
    #: unix seconds
    joined: float = 0.0
    #: it was removed, and is let in again only with a token made after that
    kicked: bool = False


class Accounts:
    """`secrets.json` and `workers.json` of a state folder. Owned by the coordinator's main thread; others may `get`."""

    def __init__(self, state: StateDir) -> None:
        self._secrets_path = state.root / "secrets.json"
        self._workers_path = state.root / "workers.json"
        self._secrets = _read_secrets(self._secrets_path)
        if self._secrets is None:
            self._keep(_new_secrets())
        self._workers = _read_workers(self._workers_path)

    @property
    def secrets(self) -> Secrets:
        """The present ones."""
        assert self._secrets is not None, "made at the start"
        return self._secrets

    def token(self, fingerprint: bytes) -> Token:
        """The token that invites to this fleet; `fingerprint` is the certificate's."""
        return Token(fingerprint=fingerprint, secret=self.secrets.secret, key=self.secrets.key)

    def rotate(self) -> None:
        """New secrets: earlier tokens invite nobody any more. Workers stay, and removed ones may come with the new."""
        self._keep(_new_secrets())
        self._write(self.workers)

    @property
    def workers(self) -> dict[str, Account]:
        """Those that may work here, by id."""
        return {wid: account for wid, account in self._workers.items() if not account.kicked}

    def get(self, wid: str) -> Account | None:
        """The account of `wid`, removed or not."""
        return self._workers.get(wid)

    def admit(self, wid: str, name: str, proof: str) -> str:
        """Opens the account of `wid`, or gives it another password; the password, which is not kept."""
        password = token.new_secret()
        account = Account(wid=wid, name=name, password=hashed(password), proof=hashed(proof), joined=time.time())
        self._write({**self._workers, wid: account})
        return password

    def kick(self, wid: str) -> None:
        """`wid` may not work here any more."""
        self._write({**self._workers, wid: replace(self._workers[wid], kicked=True)})

    def _keep(self, secrets: Secrets) -> None:
        private.write(self._secrets_path, json.dumps(asdict(secrets)))
        self._secrets = secrets

    def _write(self, workers: Mapping[str, Account]) -> None:
        private.write(self._workers_path, json.dumps([asdict(account) for account in workers.values()], indent=1))
        self._workers = dict(workers)


def hashed(secret: str) -> str:
    """What is kept of a secret: its sha256, hex."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _new_secrets() -> Secrets:
    return Secrets(secret=token.new_secret(), key=token.new_secret())


def _read_secrets(path: Path) -> Secrets | None:
    text = private.read(path)
    if text is None:
        return None
    try:
        values = json.loads(text)
        return Secrets(secret=bytes.fromhex(values["secret"]).hex(), key=bytes.fromhex(values["key"]).hex())
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"{path} is damaged: remove it; a new token is then made, and workers that joined stay"
        ) from error


def _read_workers(path: Path) -> dict[str, Account]:
    text = private.read(path)
    try:
        return {account.wid: account for account in map(_account, json.loads(text))} if text else {}
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(f"{path} is damaged: remove it; every Mac then joins again") from error


def _account(values: dict[str, Any]) -> Account:
    return Account(
        wid=str(values["wid"]),
        name=str(values["name"]),
        password=str(values["password"]),
        proof=str(values["proof"]),
        joined=float(values["joined"]),
        kicked=bool(values["kicked"]),
    )
