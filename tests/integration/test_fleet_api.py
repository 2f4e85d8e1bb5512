"""The OpenAI client and our own commands against a real `fleet up` with a worker."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from coordinator.control.running import Running
from fleet import token
from fleet.cli import main
from tests.embedders import bare_embedder
from tests.models import tiny_llama
from tests.runner import Fleet, read_lines, wait_until, write_prompts

ENDPOINT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


class Here:
    """Commands of this process over a state folder, which need not load what the tests have loaded."""

    def __init__(self, fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
        self._fleet = fleet
        self._capsys = capsys

    def __call__(self, *args: str | Path, status: int = 0) -> str:
        """What the command prints; AssertionError when it ends with another status."""
        self._capsys.readouterr()
        got = main([*map(str, args), "--state-dir", str(self._fleet.state.root)])
        printed = self._capsys.readouterr()
        assert got == status, printed.err
        return printed.out


class Up:
    """A `fleet up --local --work` over a state folder; a context."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def __enter__(self) -> Up:
        self.process = self.fleet.start("up", "--local", "--work", "--port", "0")
        try:
            running = wait_until(lambda: Running.of(self.fleet.state), within_s=60, story="fleet up")
        except AssertionError:
            self.__exit__()
            raise
        assert running is not None
        self.key = token.parse(running.token)[0].key
        self.url = f"http://127.0.0.1:{running.plain_port}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=self.key, max_retries=0)


@pytest.fixture
def faked(tmp_path: Path) -> Iterator[Up]:
    with Up(Fleet(tmp_path, fake=True)) as up:
        yield up


def batch_file(path: Path, count: int, model: Path) -> Path:
    with path.open("w") as file:
        for number in range(count):
            body = {"model": str(model), "messages": [{"role": "user", "content": f"ask {number}"}], "max_tokens": 6}
            line = {"custom_id": f"q{number}", "method": "POST", "url": ENDPOINT, "body": body}
            file.write(json.dumps(line) + "\n")
    return path


def answered(client: openai.OpenAI, backlog: Path, endpoint: Any = ENDPOINT) -> list[dict[str, Any]]:
    """The output lines of a batch over `backlog`."""
    with backlog.open("rb") as stream:
        uploaded = client.files.create(file=stream, purpose="batch")
    made = client.batches.create(input_file_id=uploaded.id, endpoint=endpoint, completion_window="24h")
    seen = set()

    def over() -> bool:
        seen.add(client.batches.retrieve(made.id).status)
        return bool(seen & {"completed", "failed", "cancelled"})

    wait_until(over, within_s=60, story="the batch")
    assert seen <= {"validating", "in_progress", "finalizing", "completed"}
    batch = client.batches.retrieve(made.id)
    assert batch.request_counts is not None
    assert batch.request_counts.completed == batch.request_counts.total
    assert batch.output_file_id is not None
    return [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]


def test_openais_client_and_our_commands_share_one_fleet(
    faked: Up, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with faked.client() as client:
        lines = answered(client, batch_file(tmp_path / "b.jsonl", 50, model))
    assert [line["custom_id"] for line in lines] == [f"q{number}" for number in range(50)]
    fleet, backlog = faked.fleet, write_prompts(tmp_path / "in.jsonl", ["one", "two"])
    flags = ("-m", model, "--max-tokens", "5")
    do = Here(fleet, capsys)
    assert "job 2: 2 of 2 done" in do("submit", "generate", backlog, *flags, "--wait", "-o", fleet.out)
    assert [line["id"] for line in read_lines(fleet.out)] == ["r0", "r1"]
    jobs = json.loads(do("jobs", "--json"))
    assert [(job["id"], job["state"], job["done"]) for job in jobs] == [(1, "finished", 50), (2, "finished", 2)]
    new = do("token", "--rotate")
    assert token.parse(new)[0].key != faked.key
    with faked.client() as client, pytest.raises(openai.AuthenticationError):
        client.batches.list()
    do("down")
    fleet.validate()


def test_ctrl_c_while_waiting_leaves_the_job_running_until_it_is_cancelled(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.05"})
    backlog = write_prompts(tmp_path / "in.jsonl", [f"prompt {number}" for number in range(200)])
    with Up(fleet):
        waiting = fleet.start("submit", "generate", backlog, "-m", model, "--max-tokens", "20", "--wait")
        wait_until(lambda: fleet.counts().done, within_s=30, story="a first answer")
        waiting.send_signal(signal.SIGINT)
        _, told = waiting.communicate(timeout=60)
        assert waiting.returncode == 130
        assert "job 1 goes on without you; `fleet watch 1` follows it" in told
        before = fleet.counts().done
        wait_until(lambda: fleet.counts().done > before, within_s=20, story="another answer")
        do = Here(fleet, capsys)
        do("cancel", "1")
        last = json.loads(do("watch", "1", "--json", status=130).splitlines()[-1])
        assert last["state"] == "cancelled"
        do("results", "1", "-o", fleet.out)
        assert len(read_lines(fleet.out)) == last["done"] < 200
    fleet.validate()


def test_a_job_outlives_its_coordinator(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.01"})
    backlog = write_prompts(tmp_path / "in.jsonl", [f"prompt {number}" for number in range(60)])
    with Up(fleet) as first:
        do = Here(fleet, capsys)
        do("submit", "generate", backlog, "-m", model, "--max-tokens", "8")
        wait_until(lambda: fleet.counts().done, within_s=30, story="a first answer")
        first.process.kill()
        first.process.wait(60)
    with Up(fleet):
        do("watch", "1")
        do("results", "1", "-o", fleet.out)
    assert [line["id"] for line in read_lines(fleet.out)] == [f"r{number}" for number in range(60)]
    assert len(set(fleet.computed())) == 60
    fleet.validate()


def test_texts_are_embedded_for_openais_client_and_for_ours(
    faked: Up, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = bare_embedder(tmp_path / "embedder")
    backlog, vectors = tmp_path / "b.jsonl", tmp_path / "vectors.npy"
    lines = [
        {"custom_id": f"e{n}", "method": "POST", "url": EMBEDDINGS, "body": {"model": str(model), "input": f"text {n}"}}
        for n in range(5)
    ]
    backlog.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with faked.client() as client:
        answers = answered(client, backlog, EMBEDDINGS)
    assert [line["custom_id"] for line in answers] == [f"e{n}" for n in range(5)]
    first = answers[0]["response"]["body"]["data"][0]["embedding"]
    texts = write_prompts(tmp_path / "texts.jsonl", [f"text {n}" for n in range(5)])
    do = Here(faked.fleet, capsys)
    do("submit", "embed", texts, "-m", model, "--text-field", "prompt", "--wait", "-o", vectors)
    matrix = np.load(vectors)
    assert matrix.shape == (5, len(first))
    assert np.allclose(matrix[0], first, atol=1e-6)
    assert [line["id"] for line in read_lines(Path(f"{vectors}.ids.jsonl"))] == [f"r{n}" for n in range(5)]
    assert json.loads(Path(f"{vectors}.meta.json").read_text())["rows"] == 5


@pytest.mark.mlx
def test_a_real_model_answers_as_a_run_on_this_machine_does(tmp_path: Path, model: Path) -> None:
    backlog = batch_file(tmp_path / "b.jsonl", 6, model)
    here = Fleet(tmp_path / "here")
    here.out.parent.mkdir()
    here.run("run", "generate", backlog, "-m", model, "-o", here.out).expect(0)
    with Up(Fleet(tmp_path / "fleet")) as up, up.client() as client:
        lines = answered(client, backlog)
    choices = [line["response"]["body"]["choices"] for line in lines]
    assert choices == [line["response"]["body"]["choices"] for line in read_lines(here.out)]
