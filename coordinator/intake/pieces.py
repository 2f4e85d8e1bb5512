"""Texts to embed as rows: whole where they fit the model's length, else cut, in pieces, or an error, as was asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from coordinator.intake.fields import NOTHING_SET, Settings
from coordinator.intake.options import IntakeOptions
from coordinator.intake.prompts import Prompt
from coordinator.intake.tokens import WHOLE_CHARS, Tokens
from coordinator.intake.vector_options import CHUNK, ERROR, TRUNCATE
from coordinator.intake.windows import windows
from coordinator.records import NewRow, Place
from fleet.encoder_folder import EncoderFolder
from fleet.errors import ModelError, RequestError, UsageError
from fleet.job import Embedding, KeyHeader, KeyMaker, Sampling

#: Less room than this for a text beside special tokens and prompt is none.
LEAST_ROOM_TOKENS = 16
#: Of a text too long to encode whole, this many characters a token are looked at for its first ones.
_CHARS_A_TOKEN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A text, or a part of it, ready to be embedded."""

    tokens: bytes
    #: which characters of the text
    start: int
    end: int
    #: tokens of the whole text, where the rest is left out; else 0
    cut_tokens: int = 0
    whole: bool = True


#: What a text came to.
Encoded = tuple[Piece, ...] | RequestError


class Pieces:
    """Makes the rows of one job that embeds."""

    def __init__(self, tokens: Tokens, encoder: EncoderFolder, options: IntakeOptions, header: KeyHeader) -> None:
        """UsageError for options that the model cannot follow."""
        self._tokens = tokens
        self._encoder = encoder
        self._options = options
        self._limit = encoder.max_seq_tokens
        self._header = replace(header, max_tokens=0)
        self._prefix = prompt_text(encoder, options.prompt_name)
        #: a prompt around no text
        self._nothing = tokens.encode([self._prefix], special=True)[0]
        self._room = self._limit - len(self._nothing) // 4
        if self._room < LEAST_ROOM_TOKENS:
            raise ModelError(f"{encoder.folder} holds {self._limit} tokens, too few for a prompt and a text")
        self._dimensions(NOTHING_SET)
        self._makers: dict[int, tuple[Sampling, KeyMaker]] = {}

    # -- cutting -----------------------------------------------------------------------------------

    def cut(self, prompts: Sequence[Prompt], encoded: Sequence[bytes | int]) -> list[Encoded]:
        """The pieces of each prompt; `encoded` has its tokens, or only how many there are, about."""
        made: list[Encoded | None] = [
            None if count(tokens) > self._limit else self._whole(prompt, tokens)
            for prompt, tokens in zip(prompts, encoded, strict=True)
        ]
        long = {i: self._policy(prompts[i]) for i, pieces in enumerate(made) if pieces is None}
        for i in [i for i, policy in long.items() if policy == ERROR]:
            made[i] = self._too_long(prompts[i], encoded[i])
        cut = [i for i, policy in long.items() if policy == TRUNCATE]
        for i, piece in zip(cut, self._truncated([prompts[i] for i in cut]), strict=True):
            made[i] = (replace(piece, cut_tokens=count(encoded[i])),)
        chunked = [i for i, policy in long.items() if policy == CHUNK]
        for i, pieces in zip(chunked, self._chunks([prompts[i].document or "" for i in chunked]), strict=True):
            made[i] = pieces
        return [pieces for pieces in made if pieces is not None]

    def _policy(self, prompt: Prompt) -> str:
        if prompt.document is None:  # token ids: nobody knows where they may be cut
            return ERROR
        return self._options.long or (CHUNK if prompt.may_split else ERROR)

    def _whole(self, prompt: Prompt, tokens: bytes | int) -> Encoded:
        assert isinstance(tokens, bytes), "a text that fits is encoded"
        if not tokens or tokens == self._nothing:
            return _nothing_in_it()
        return (Piece(tokens=tokens, start=0, end=len(prompt.document or "")),)

    def _too_long(self, prompt: Prompt, tokens: bytes | int) -> RequestError:
        what = "token ids are" if prompt.document is None else "text has"
        about = "about " if isinstance(tokens, int) else ""
        way_out = "" if prompt.document is None else "; --long truncate or --long chunk takes it"
        return RequestError(
            f"the {what} {about}{count(tokens):,} tokens, expected at most {self._limit:,}, the model's max_seq_length"
            f"{way_out}"
        )

    def _truncated(self, prompts: Sequence[Prompt]) -> list[Piece]:
        """The first tokens of each, as many as the model takes, special ones included."""
        longest = max(_CHARS_A_TOKEN * self._limit, WHOLE_CHARS)
        found = self._tokens.first([prompt.text[:longest] for prompt in prompts], self._limit) if prompts else []
        return [
            Piece(tokens=tokens, start=0, end=max(end - len(self._prefix), 0), whole=False) for tokens, end in found
        ]

    def _chunks(self, texts: Sequence[str]) -> list[Encoded]:
        """Pieces that fit. Each is embedded as the text it is, so its vector is that of the same text on its own."""
        made: list[Encoded] = [()] * len(texts)
        starts = self._tokens.starts_of(texts)
        rooms = dict.fromkeys(range(len(texts)), self._room)
        while rooms:
            ranges = {i: windows(texts[i], starts[i], room) for i, room in rooms.items()}
            cut = [(i, start, end) for i, pairs in ranges.items() for start, end in pairs]
            slices = [self._prefix + texts[i][start:end] for i, start, end in cut]
            pieces: dict[int, list[Piece]] = {i: [] for i in rooms}
            for (i, start, end), tokens in zip(cut, self._tokens.encode(slices, special=True), strict=True):
                pieces[i].append(Piece(tokens=tokens, start=start, end=end, whole=False))
            rooms = self._try_again(pieces, rooms, made)
        return made

    def _try_again(self, pieces: dict[int, list[Piece]], rooms: dict[int, int], made: list[Encoded]) -> dict[int, int]:
        """Puts texts all of whose pieces fit into `made`; the others with less room for each piece, since tokens
        counted across a border differ."""
        smaller: dict[int, int] = {}
        for i, found in pieces.items():
            over = max((count(piece.tokens) for piece in found), default=0) - self._limit
            if over <= 0:
                made[i] = tuple(piece for piece in found if piece.tokens != self._nothing) or _nothing_in_it()
            elif (room := rooms[i] - max(over, rooms[i] // 16)) >= LEAST_ROOM_TOKENS:
                smaller[i] = room
            else:
                made[i] = RequestError("the text cannot be cut into pieces that the model holds")
        return smaller

    # -- rows --------------------------------------------------------------------------------------

    def rows(self, encoded: Iterable[Encoded], settings: Settings) -> tuple[NewRow, ...]:
        """The rows of a request with these texts; RequestError when one of them has none."""
        sampling, maker = self._maker(self._dimensions(settings))
        pieces: list[tuple[int, Piece]] = []
        for text, found in enumerate(encoded):
            if isinstance(found, RequestError):
                raise found
            pieces += [(text, piece) for piece in found]
        placed = not all(piece.whole for _, piece in pieces)
        return tuple(
            NewRow(
                key=maker.key(piece.tokens),
                tokens=piece.tokens,
                max_tokens=0,
                sampling=sampling,
                place=_place(text, piece) if placed else None,
            )
            for text, piece in pieces
        )

    def _dimensions(self, settings: Settings) -> int:
        """Numbers to keep of a vector, 0 for all of them."""
        asked = self._options.dimensions if settings.dimensions is None else settings.dimensions
        flaw = wrong_dimensions(self._encoder, asked)
        if flaw:
            raise (UsageError if settings.dimensions is None else RequestError)(f"dimensions: {flaw}")
        return 0 if asked == self._encoder.dimension else asked

    def _maker(self, dimensions: int) -> tuple[Sampling, KeyMaker]:
        if dimensions not in self._makers:
            wanted = Embedding(dtype=self._options.dtype, dimensions=dimensions, folder=self._encoder.hash)
            sampling = Sampling(embedding=wanted)
            self._makers[dimensions] = sampling, KeyMaker(replace(self._header, sampling=sampling))
        return self._makers[dimensions]


def count(tokens: bytes | int) -> int:
    """How many tokens these are."""
    return tokens if isinstance(tokens, int) else len(tokens) // 4


def prompt_text(encoder: EncoderFolder, name: str | None) -> str:
    """What the model has put before a text; UsageError for a prompt it does not have."""
    name = encoder.default_prompt if name is None else name
    if name and name not in encoder.prompts:
        known = ", ".join(sorted(encoder.prompts)) or "none"
        raise UsageError(f"option prompt: found {name!r}, and the prompts of {encoder.folder} are: {known}")
    return encoder.prompts[name] if name else ""


def wrong_dimensions(encoder: EncoderFolder, asked: int) -> str:
    """What is wrong with vectors of `asked` numbers, empty for nothing; 0 asks for all of them."""
    if asked in (0, encoder.dimension, *encoder.matryoshka):
        return ""
    sizes = sorted({*encoder.matryoshka, encoder.dimension})
    if len(sizes) == encoder.dimension:
        return f"found {asked}, expected 1 to {encoder.dimension}"
    declared = "" if encoder.matryoshka else ", since the model declares no shorter vectors"
    return f"found {asked}, expected {' or '.join(map(str, sizes))}{declared}"


def _nothing_in_it() -> RequestError:
    return RequestError("the text has no tokens in this model: nothing to embed")


def _place(text: int, piece: Piece) -> Place:
    return Place(text=text, start=piece.start, end=piece.end, cut_tokens=piece.cut_tokens)
