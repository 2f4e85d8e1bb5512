"""A coordinator, a worker or a seeker on some host, for tests: prints JSON lines, obeys words on its standard input.

python -m tests.mdns_peer coordinator NAME FINGERPRINT PORT     prints {macs} when they change
python -m tests.mdns_peer impostor NAME FINGERPRINT PORT FOLDER
                                                                has a certificate of its own in FOLDER; prints at its
                                                                end how many connections and bytes it got
python -m tests.mdns_peer worker NAME WID FINGERPRINT           takes a state a line
python -m tests.mdns_peer find FINGERPRINT|- TIMEOUT            prints {found, took_s}
"""

import json
import os
import socket
import ssl
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from coordinator.joining.certificate import Certificate
from coordinator.joining.discovery import Discovery
from fleet.config import StateDir
from fleet.messages import Host
from worker.discover import Advert, find


def say(**what):
    print(json.dumps(what), flush=True)


def coordinate(name, fingerprint, port, ended):
    discovery = Discovery(name, port=int(port), api_port=int(port) + 1, fingerprint=bytes.fromhex(fingerprint))
    told = None
    while not ended.wait(0.05):
        now = {"macs": [asdict(seen) for seen in discovery.macs()]}
        if now != told:
            say(**now)
            told = now
    discovery.close()


def pretend(name, fingerprint, port, folder):
    certificate = Certificate.of(StateDir(Path(folder)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.path, certificate.key_path)
    discovery = Discovery(name, port=int(port), api_port=int(port) + 1, fingerprint=bytes.fromhex(fingerprint))
    counts = {"connections": 0, "received": 0}

    def hear(listener):
        while True:
            connection, _ = listener.accept()
            counts["connections"] += 1
            with suppress(OSError), connection, context.wrap_socket(connection, server_side=True) as secured:
                counts["received"] += len(secured.recv(4096))

    with socket.create_server(("0.0.0.0", int(port))) as listener:
        threading.Thread(target=hear, args=(listener,), daemon=True).start()
        sys.stdin.read()
        discovery.close()
        say(**counts)
        os._exit(0)


def advertise(name, wid, fingerprint):
    host = Host(name=name, chip="Apple M4", memory_bytes=16 << 30)
    advert = Advert(host, wid, fingerprint=bytes.fromhex(fingerprint))
    for line in sys.stdin:
        advert.update(line.strip())
    advert.close()


def seek(fingerprint, timeout_s):
    began = time.monotonic()
    found = find(None if fingerprint == "-" else bytes.fromhex(fingerprint), float(timeout_s))
    say(found=[asdict(each) for each in found], took_s=time.monotonic() - began)


def main(role, *args):
    if role == "coordinator":
        ended = threading.Event()
        thread = threading.Thread(target=coordinate, args=(*args, ended))
        thread.start()
        sys.stdin.read()
        ended.set()
        thread.join()
    else:
        {"worker": advertise, "find": seek, "impostor": pretend}[role](*args)


if __name__ == "__main__":
    main(*sys.argv[1:])
