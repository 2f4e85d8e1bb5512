"""A coordinator, a worker or a seeker on some host, for tests: prints JSON lines, obeys words on its standard input.

python -m tests.mdns_peer coordinator NAME FINGERPRINT PORT     prints {macs} when they change
python -m tests.mdns_peer worker NAME WID FINGERPRINT           takes a state a line
python -m tests.mdns_peer find FINGERPRINT|- TIMEOUT            prints {found, took_s}
"""

import json
import sys
import threading
import time
from dataclasses import asdict

from coordinator.discovery import Discovery
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
        {"worker": advertise, "find": seek}[role](*args)


if __name__ == "__main__":
    main(*sys.argv[1:])
