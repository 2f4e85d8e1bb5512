"""Seeded backlogs: prompt lengths that a policy may see, answer lengths that it may not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

#: Middle prompt and the spread of the log-normal; like the passages of `fleet demo`, but shorter.
PROMPT_MEDIAN, PROMPT_SIGMA = 256, 0.7
PROMPT_LEAST, PROMPT_MOST = 16, 4096
#: Middle answer, the spread, and where an answer is cut.
ANSWER_MEDIAN, ANSWER_SIGMA = 200, 1.0
MAX_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Rows 0 .. n-1."""

    seed: int
    prompts: NDArray[np.int64]
    answers: NDArray[np.int64]
    max_tokens: int = MAX_TOKENS

    def __len__(self) -> int:
        return len(self.prompts)


def make(rows: int, seed: int, *, tie: float = 0.0) -> Workload:
    """Log-normal prompts and answers; `tie` is the correlation of their logarithms."""
    rng = np.random.default_rng(seed)
    first, second = rng.standard_normal(rows), rng.standard_normal(rows)
    prompts = PROMPT_MEDIAN * np.exp(PROMPT_SIGMA * first)
    answers = ANSWER_MEDIAN * np.exp(ANSWER_SIGMA * (tie * first + np.sqrt(1 - tie * tie) * second))
    return Workload(
        seed=seed,
        prompts=np.clip(prompts, PROMPT_LEAST, PROMPT_MOST).astype(np.int64),
        answers=np.clip(answers, 1, MAX_TOKENS).astype(np.int64),
    )


def write(workload: Workload, path: Path) -> None:
    """One JSON line a row, after a line of what all have."""
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"seed": workload.seed, "max_tokens": workload.max_tokens}) + "\n")
        for prompt, answer in zip(workload.prompts.tolist(), workload.answers.tolist(), strict=True):
            file.write(json.dumps([prompt, answer]) + "\n")


def read(path: Path) -> Workload:
    """What `write` wrote."""
    with path.open(encoding="utf-8") as file:
        head = json.loads(file.readline())
        rows = np.array([json.loads(line) for line in file], np.int64).reshape(-1, 2)
    return Workload(seed=head["seed"], max_tokens=head["max_tokens"], prompts=rows[:, 0], answers=rows[:, 1])
