"""The door to `tokenizers`: text to token ids, with nothing cut, padded or added unasked."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from fleet.errors import ModelError
from fleet.model import TOKENIZER_FILE

#: Text of one call to the tokenizer, characters: keeps both memory and idle cores small.
BATCH_CHARS = 1 << 20
#: Longer texts are counted in pieces of this size, so that memory does not follow a text no context can hold.
PIECE_CHARS = 64 << 10
_PIECES_AT_ONCE = 8
#: Up to this size a text is encoded whole and its count is exact, characters.
WHOLE_CHARS = 512 << 10


class Tokens:
    """A model's tokenizer."""

    def __init__(self, folder: Path) -> None:
        file = folder / TOKENIZER_FILE
        try:
            stat = file.stat()
            self._tokenizer = _tokenizer(str(file), stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except Exception as error:  # tokenizers raises plain Exception for everything
            raise ModelError(f"{file} cannot be read as a tokenizer: {error}") from error

    @property
    def vocabulary(self) -> int:
        """Token ids that exist, special ones included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, texts: Sequence[str], *, special: bool = False) -> list[bytes]:
        """Token ids of each text, uint32 little endian; `special` adds what the tokenizer puts around a raw text."""
        packed: list[bytes] = []
        for batch in _batches(texts):
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=special)
            packed += [pack(encoding.ids) for encoding in encodings]
        return packed

    def count(self, text: str) -> int:
        """Tokens of `text`; over WHOLE_CHARS counted in pieces, off by about one a piece at most."""
        ranges = pieces(text)
        total = 0
        while batch := [text[start:end] for start, end in islice(ranges, _PIECES_AT_ONCE)]:
            total += sum(map(len, self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)))
        return total

    def starts(self, text: str) -> array[int]:
        """Where each token of `text` starts, in characters, ascending; long texts as in `count`."""
        starts = array("I")
        for start, end in pieces(text):
            encoding = self._tokenizer.encode(text[start:end], add_special_tokens=False)
            starts.extend([start + offset for offset, _ in encoding.offsets])
        return starts

    def starts_of(self, texts: Sequence[str]) -> list[array[int]]:
        """`starts` of each text, on all cores."""
        found: list[array[int]] = []
        for batch in _batches(texts):
            if len(batch) == 1:
                found.append(self.starts(batch[0]))
                continue
            encodings = self._tokenizer.encode_batch(batch, add_special_tokens=False)
            found += [array("I", [offset for offset, _ in encoding.offsets]) for encoding in encodings]
        return found

    def first(self, texts: Sequence[str], limit: int) -> list[tuple[bytes, int]]:
        """The first `limit` token ids of each raw text, special ones included, and the character where they end."""
        cutting = Tokenizer.from_str(self._tokenizer.to_str())
        cutting.enable_truncation(limit)
        found: list[tuple[bytes, int]] = []
        for batch in _batches(texts):
            encodings = cutting.encode_batch(batch, add_special_tokens=True)
            found += [(pack(e.ids), max((end for _, end in e.offsets), default=0)) for e in encodings]
        return found


@lru_cache(maxsize=4)
def _tokenizer(file: str, *_state: int) -> Tokenizer:
    """A file's tokenizer while it is as it was: one that is dropped leaves 4 MB or more of its caches behind, and a
    coordinator prepares many jobs."""
    tokenizer = Tokenizer.from_file(file)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def pack(ids: Sequence[int]) -> bytes:
    """Token ids as uint32, little endian."""
    packed = array("I")
    packed.fromlist(ids if isinstance(ids, list) else list(ids))  # 500 of them in half the time that extend takes
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(tokens: bytes) -> list[int]:
    """Token ids of packed `tokens`."""
    ids = array("I", tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()


def pieces(text: str) -> Iterator[tuple[int, int]]:
    """Ranges that cover `text`: one up to WHOLE_CHARS, else of about PIECE_CHARS, ending before a blank if they can."""
    start = 0
    while len(text) > WHOLE_CHARS and len(text) - start > PIECE_CHARS:
        end = start + PIECE_CHARS
        blank = max(text.rfind(" ", start + 1, end), text.rfind("\n", start + 1, end))
        end = blank if blank > start + PIECE_CHARS // 2 else end
        yield start, end
        start = end
    if start < len(text):
        yield start, len(text)


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    chars = 0
    for text in texts:
        if batch and chars + len(text) > BATCH_CHARS:
            yield batch
            batch, chars = [], 0
        batch.append(text)
        chars += len(text)
    if batch:
        yield batch
