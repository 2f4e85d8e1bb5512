"""`fleet demo` for real: the packages' files, MLX, every process of a run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 2


@pytest.mark.mlx
@pytest.mark.timeout(600)
def test_the_demo_summarizes_real_passages_with_a_model_it_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fleet", "demo", "--limit", str(LIMIT), "--state-dir", str(tmp_path), "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert (report["requests"], report["done"], report["failed"], report["computed_rows"]) == (LIMIT, LIMIT, 0, LIMIT)
    assert report["output_tokens"] > 0
    assert 0 < report["occupancy"] <= 1

    passages = (tmp_path / "demo" / "passages.jsonl").read_text(encoding="utf-8").splitlines()
    summaries = [json.loads(line) for line in Path(report["output"]).read_text(encoding="utf-8").splitlines()]
    assert [summary["id"] for summary in summaries] == [json.loads(line)["id"] for line in passages[:LIMIT]]
    assert all(len(summary["text"].split()) > 5 for summary in summaries)

    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert (json.loads(again.stdout)["computed_rows"], json.loads(again.stdout)["reused_rows"]) == (0, LIMIT)
