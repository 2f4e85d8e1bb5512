"""The same texts through mlx-embeddings, in an environment of its own; `ops.bench.embed --other PYTHON` starts this.

PYTHON other.py MODEL TEXTS.json: answers each line `BATCH ORDER` on standard input with seconds, as JSON.
"""

import json
import sys
import time
from pathlib import Path

import mlx.core as mx
from mlx_embeddings.utils import load_model


def batches(texts: list[list[int]], size: int, order: str) -> list[list[list[int]]]:
    """Texts in batches of `size`: as they come, or longest first."""
    chosen = sorted(texts, key=len, reverse=True) if order == "sorted" else texts
    return [chosen[at : at + size] for at in range(0, len(chosen), size)]


def load(folder: Path):
    model = load_model(folder)
    return model[0] if isinstance(model, tuple) else model


def embed(model, batch: list[list[int]]) -> mx.array:
    longest = max(map(len, batch))
    tokens = mx.array([text + [0] * (longest - len(text)) for text in batch])
    mask = mx.array([[1] * len(text) + [0] * (longest - len(text)) for text in batch])
    vectors = model(tokens, attention_mask=mask).text_embeds
    mx.eval(vectors)
    return vectors


def main() -> None:
    model = load(Path(sys.argv[1]))
    texts = json.loads(Path(sys.argv[2]).read_text())
    print("ready", flush=True)
    for line in sys.stdin:
        size, order = line.split()
        started = time.perf_counter(), time.process_time()
        for batch in batches(texts, int(size), order):
            embed(model, batch)
        print(json.dumps([time.perf_counter() - started[0], time.process_time() - started[1]]), flush=True)


if __name__ == "__main__":
    main()
