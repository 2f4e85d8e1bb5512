"""The embedding loop over a real tiny encoder: what it says, what it measures and keeps, and shortages of memory."""

import queue
from pathlib import Path

import pytest

from fleet.errors import ModelError
from fleet.job import Embedding, Finish, Sampling
from fleet.messages import Finished, Message, Pulse, Ready, RowResult, SetCap
from tests.driver import shard
from tests.encoder_models import tiny_encoder
from worker.device import subject
from worker.embedding_engine import CPU_TOKENS, start_embedding
from worker.embedding_loop import told_cap
from worker.embedding_model import LoadedEmbedder, load_embedder
from worker.faults import Faults
from worker.knee_store import KneeStore
from worker.token_budget import SAMPLE_TOKENS

pytestmark = pytest.mark.mlx

WANTED = Sampling(embedding=Embedding())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedEmbedder:
    folder = tmp_path_factory.mktemp("model")
    return load_embedder(str(tiny_encoder(folder / "tiny")), "", folder / "hashes")


class Engine:
    """A loop with what it said."""

    def __init__(self, loaded: LoadedEmbedder, *, memory_bytes: int = 0, knees: Path | None = None) -> None:
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.said: list[Message] = []
        self.hash = loaded.hash
        self.loop = start_embedding(
            loaded,
            cap=0,
            memory_bytes=memory_bytes,
            inbox=self.inbox,
            send=self.said.append,
            log_key=lambda _: None,
            faults=Faults(),
            knees=knees,
        )

    def finish(self, rows: dict[int, list[int]]) -> dict[int, RowResult]:
        """Gives rows and turns until all are finished."""
        self.inbox.put(shard(rows, model_hash=self.hash, sampling=WANTED, max_tokens=0))
        for _ in range(10_000):
            self.loop.turn()
            done = {row.id: row for message in self.said if isinstance(message, Finished) for row in message.rows}
            if rows.keys() <= done.keys():
                return done
        raise AssertionError("rows never finished")


def texts(count: int) -> dict[int, list[int]]:
    return {id: [2 + (id + at) % 100 for at in range(40)] for id in range(count)}


def test_plenty_of_texts_have_their_budget_measured_kept_and_told(loaded: LoadedEmbedder, tmp_path: Path) -> None:
    engine = Engine(loaded, knees=tmp_path / "knees.json")
    assert [message.cap for message in engine.said if isinstance(message, Ready)] == [told_cap(CPU_TOKENS)]
    results = engine.finish(texts(600))
    assert all(row.finish is Finish.STOP for row in results.values())
    assert any(message.measuring for message in engine.said if isinstance(message, Pulse))
    stored = KneeStore(tmp_path / "knees.json", subject(f"{loaded.hash} embedding")).load()[SAMPLE_TOKENS]
    assert stored.ended
    knee = stored.knee
    assert knee is not None
    told = [message.cap for message in engine.said if isinstance(message, Ready)]
    assert told[-1] == told_cap(knee.rows)
    again = Engine(loaded, knees=tmp_path / "knees.json")
    assert [message.cap for message in again.said if isinstance(message, Ready)] == [told_cap(knee.rows)]


def test_a_few_texts_are_embedded_without_measuring(loaded: LoadedEmbedder) -> None:
    engine = Engine(loaded)
    engine.finish(texts(20))
    assert not any(message.measuring for message in engine.said if isinstance(message, Pulse))


def test_a_cap_from_outside_is_kept(loaded: LoadedEmbedder) -> None:
    engine = Engine(loaded)
    engine.inbox.put(SetCap(rows=2))
    engine.finish(texts(8))
    assert [message.running for message in engine.said if isinstance(message, Pulse)][-1] == ()
    assert engine.loop._cap == 2


def test_memory_that_holds_no_text_is_refused_and_a_text_that_does_not_fit_is_an_error(loaded: LoadedEmbedder) -> None:
    with pytest.raises(ModelError, match="--memory"):
        Engine(loaded, memory_bytes=loaded.weight_bytes)
    room = int((loaded.weight_bytes + 30 * loaded.token_bytes) / 0.85) + 1
    (result,) = Engine(loaded, memory_bytes=room).finish({1: [5] * 40}).values()
    assert result.finish is Finish.ERROR
    assert "40 tokens need" in (result.error or "")
