"""A script as one writes it by hand: JSON lines of texts to Parquet, in one process. PYTHON from_file.py ENCODER ...

ENCODER is `ours` or `mlx-embeddings`, then MODEL TEXTS.jsonl OUT.parquet BATCH ORDER, the last `sorted` or `unsorted`.
Runs in another environment too, so it imports nothing of ours but the encoder that it measures.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer


def ours(model: Path):
    """Our encoder, without the engine around it."""
    from worker.embedder import unit
    from worker.embedding_model import load_embedder

    with tempfile.TemporaryDirectory() as cache:
        embedder = load_embedder(str(model), "", Path(cache) / "hashes").embedder
    return lambda batch: unit(embedder.finish(embedder.start(batch)))


def theirs(model: Path):
    """mlx-embeddings as `other.py` calls it; that lies beside this file."""
    from other import embed, load

    loaded = load(model)
    return lambda batch: np.array(embed(loaded, batch))


ENCODERS = {"ours": ours, "mlx-embeddings": theirs}


def main() -> None:
    encoder, model, texts, out, batch, order = sys.argv[1:]
    embed = ENCODERS[encoder](Path(model))
    lines = [json.loads(line) for line in Path(texts).read_text().splitlines()]
    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokens = [encoding.ids for encoding in tokenizer.encode_batch_fast([line["text"] for line in lines])]
    places = list(range(len(tokens)))
    if order == "sorted":
        places.sort(key=lambda at: len(tokens[at]), reverse=True)
    made = [
        embed([tokens[at] for at in places[start : start + int(batch)]]) for start in range(0, len(places), int(batch))
    ]
    vectors = np.empty((len(places), made[0].shape[1]), dtype=np.float32)
    vectors[places] = np.concatenate(made)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    table = {"id": [line["id"] for line in lines], "vector": column, "tokens": [len(ids) for ids in tokens]}
    pq.write_table(pa.table(table), out, use_dictionary=["id"])


if __name__ == "__main__":
    main()
