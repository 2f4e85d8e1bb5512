"""Runs of a job in random order of events, held against a plain model of what the ledger must say."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.records import NewRequest, Shape
from fleet.config import StateDir
from fleet.job import JobState, RequestState
from tests.ledgers import done, failed, request, row, spec

KINDS = 40
LIVES = 12


def backlog(draw: random.Random) -> list[NewRequest]:
    """Requests that share rows, repeat ids, are broken, or are long documents."""
    made = []
    for number in range(draw.randrange(20, 60)):
        name = f"r{draw.randrange(number + 1) if draw.random() < 0.05 else number}"
        if draw.random() < 0.1:
            made.append(request(name, error="bad line", line=number))
            continue
        shape = Shape.REDUCE if draw.random() < 0.2 else Shape.EACH
        rows = [draw.randrange(KINDS) for _ in range(draw.choice([1, 1, 1, 2, 5]))]
        made.append(request(name, *rows, line=number, shape=shape))
    return made


class Run:
    """One life of a process that works on the job: it may end at any step."""

    def __init__(self, ledger: Ledger, draw: random.Random, texts: dict[bytes, str]) -> None:
        self.ledger, self.draw, self.texts = ledger, draw, texts
        self.open: dict[int, None] = {}

    def hand_out(self, ids: list[int]) -> None:
        assert not self.open.keys() & set(ids), "a row was given out twice"
        self.open.update(dict.fromkeys(ids))

    def reduce(self, job: int) -> None:
        while requests := self.ledger.ready_to_reduce(job):
            for asked in requests:
                texts = self.ledger.part_texts(asked)
                assert len(texts) > 1
                level = [row(KINDS + len(texts) * 7 + k) for k in range((len(texts) + 1) // 2)]
                self.hand_out([opened.id for opened in self.ledger.add_parts(asked, level)])

    def work(self) -> None:
        """A few results, errors and crashes."""
        some = self.draw.sample(list(self.open), min(len(self.open), self.draw.randrange(1, 8)))
        results = []
        for number in some:
            self.open.pop(number)
            chance = self.draw.random()
            if chance < 0.08:
                for _ in range(2):
                    self.ledger.crashed([number], alone=True)
                self.ledger.quarantine(number, "kills the engine")
            elif chance < 0.2:
                results.append(failed(number))
            else:
                results += [done(number, f"{self.draw.random()}"), done(number, "a copy that came later")]
                (stored,) = self.ledger.rows([number])
                assert stored.key not in self.texts, "a row with a result was computed again"
                self.texts[stored.key] = results[-2].text
        self.ledger.commit("w", results)


@pytest.mark.parametrize("seed", range(8))
def test_a_job_ends_whole_however_often_it_is_killed(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    asked, state, texts = backlog(draw), StateDir(tmp_path), {}
    for life in range(LIVES):
        with Ledger.open(state) as ledger:
            job, _ = ledger.begin_job(spec())
            run = Run(ledger, draw, texts)
            left = draw.choice([3, 10, 200]) if life < LIVES - 1 else 100_000  # events until this process is killed
            if job.intake_complete and draw.random() < 0.7:
                for rows in ledger.open_rows(job.id, batch=7):
                    run.hand_out([opened.id for opened in rows])
                feed: list[list[NewRequest]] = []
            else:
                ledger.reset_intake(job.id)
                feed = [asked[start : start + 6] for start in range(0, len(asked), 6)]
            run.reduce(job.id)
            while left and (feed or run.open):
                left -= 1
                if feed and draw.random() < 0.6:
                    run.hand_out([opened.id for opened in ledger.add_requests(job.id, feed.pop(0))])
                    if not feed:
                        ledger.finish_intake(job.id, "sig")
                elif run.open:
                    run.work()
                run.reduce(job.id)
            ledger.validate()
            if left:
                ledger.end_job(job.id, JobState.FINISHED)
                ledger.validate()
    with Ledger.read(state) as ledger:
        answers = list(ledger.answers(1))
    assert [answer.source.line for answer in answers] == [wanted.source.line for wanted in asked]
    for answer, wanted in zip(answers, asked, strict=True):
        if answer.state is RequestState.DONE and wanted.shape is Shape.EACH:
            assert [part.text for part in answer.parts] == [texts[part.key] for part in wanted.rows]
    assert any(answer.state is RequestState.DONE for answer in answers)
