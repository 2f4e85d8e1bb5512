"""Inputs to requests ready for the ledger: read, checked, put into prompts, tokenised; lazily, in chunks."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from itertools import chain, islice
from pathlib import Path

from coordinator.intake import inputs as sources
from coordinator.intake import requests
from coordinator.intake.chat import ChatTemplate, load_chat_template, missing_template
from coordinator.intake.checks import check_options, label_tokens
from coordinator.intake.fields import NOTHING_SET, Settings
from coordinator.intake.formats import Record
from coordinator.intake.options import IntakeOptions
from coordinator.intake.parts import Parts
from coordinator.intake.pieces import Encoded, Pieces, prompt_text
from coordinator.intake.prompts import Prompt, Prompts, read_template
from coordinator.intake.requests import NO_CONTENT, RawRequest
from coordinator.intake.rows import RowMaker, too_long
from coordinator.intake.tokens import WHOLE_CHARS, Tokens
from coordinator.records import NewRequest, NewRow, Shape
from fleet.encoder_folder import read_encoder
from fleet.errors import RequestError, UsageError
from fleet.job import KeyHeader, Sampling, Task
from fleet.model import context_tokens, read_config, tokenizer_hash

__all__ = ["Intake", "IntakeOptions"]

#: What tokenising makes of a prompt: its tokens, or how many there are about, or, to be embedded, its pieces.
_Encoded = bytes | int | Encoded
#: Requests in the first chunk, so that the first shard leaves early, and in the others.
FIRST_CHUNK = 64
CHUNK = 1_000
#: Chunks tokenised at once: each uses all cores, but packs its tokens on one, and the other has them then.
TOKENISERS = 2
#: A chunk ends early at this many characters of prompts; bounds memory.
CHUNK_CHARS = 4 << 20
#: Records looked at to tell what kind of lines an input has.
_PEEK = 1_000
#: Distinct warnings kept; a field of random names must not grow without bound.
_MAX_NOTICES = 50


@dataclass(frozen=True, slots=True)
class _Draft:
    """A request with its prompts, on its way to the tokenizer."""

    raw: RawRequest
    prompts: list[Prompt]


class Intake:
    """One job's backlog. Everything that can be refused before any work is refused by the constructor."""

    def __init__(self, inputs: Sequence[str], options: IntakeOptions, folder: Path, model_hash: str) -> None:
        """UsageError for inputs or options that cannot be worked on, ModelError for a model that cannot do it."""
        sources.check_inputs(inputs)
        encoder = read_encoder(folder) if options.task is Task.EMBED else None
        context = context_tokens(read_config(folder)) if encoder is None else encoder.max_seq_tokens
        check_options(options, context)
        self._inputs = tuple(inputs)
        self._options = options
        self._notices: Counter[str] = Counter()
        self._encoder = encoder
        # what decides how tokens become a vector changes no weights, and stands in a row's key like the tokenizer
        self._tokenizer_hash = tokenizer_hash(folder) + (encoder.hash if encoder else "")
        self._tokens = Tokens(folder)
        chat = load_chat_template(folder, date.fromisoformat(options.today) if options.today else date.today())
        before = prompt_text(encoder, options.prompt_name) if encoder else None
        self._prompts = Prompts(options, chat, self._tokens.vocabulary, before)
        self._records, url = self._peek()
        #: True when the input holds OpenAI batch lines: the output then has that form too
        self.is_openai = url is not None
        if encoder is None:
            self._check_model(chat, folder, raw=url == requests.COMPLETIONS_URL)
        self._context = context
        self._header = KeyHeader(
            model_hash=model_hash, tokenizer_hash=self._tokenizer_hash, sampling=Sampling(), max_tokens=0
        )
        self.use_salt("")

    def use_salt(self, salt: str) -> None:
        """Makes every row new, see `fleet.job.salted`; to be called before `chunks`."""
        options = self._options
        labels = label_tokens(options.labels, self._tokens, self._prompts) if options.task is Task.CLASSIFY else ()
        header = replace(self._header, salt=salt)
        self._rows = RowMaker(options, header, context=self._context, label_tokens=labels)
        self._pieces = Pieces(self._tokens, self._encoder, options, header) if self._encoder else None
        self._parts = Parts(self._tokens, self._prompts, self._rows) if options.task is Task.SUMMARIZE else None

    @property
    def warnings(self) -> list[str]:
        """What was ignored so far, summarized: one sentence a kind."""
        counted = sorted(self._notices.items())
        return [f"{text} ({count:,} line{'s' if count > 1 else ''})" if count else text for text, count in counted]

    def signature(self) -> str:
        """Changes when an input, the prompt template or the tokenizer does; empty for standard input."""
        inputs = sources.signature(self._inputs)
        if not inputs:
            return ""
        template = self._options.prompt_template
        parts = [inputs, self._tokenizer_hash, "" if template is None else read_template(template)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def chunks(self) -> Iterator[list[NewRequest]]:
        """The backlog's requests in input order; to be called once. Chunks are tokenised while the next are read."""
        with ThreadPoolExecutor(TOKENISERS, thread_name_prefix="tokenise") as tokenise:
            ahead: deque[tuple[list[_Draft], Future[Sequence[_Encoded]]]] = deque()
            for drafts in self._drafts():
                prompts = [prompt for draft in drafts for prompt in draft.prompts]
                ahead.append((drafts, tokenise.submit(self._prepare, prompts)))
                while ahead and (ahead[0][1].done() or len(ahead) > TOKENISERS):
                    yield self._finish(*ahead.popleft())
            while ahead:
                yield self._finish(*ahead.popleft())

    def reduce(
        self, texts: Sequence[str], *, sampling: Sampling | None = None, max_tokens: int | None = None
    ) -> tuple[NewRow, ...]:
        """Rows of the next level over the summaries of a document's parts; the last level is one row."""
        assert self._parts is not None, "only summarize makes documents of several parts"
        return self._parts.reduce(texts, sampling, max_tokens)

    # -- reading -------------------------------------------------------------------------------------

    def _peek(self) -> tuple[Iterator[Record], object]:
        """All records, and the url of the first request if that is an OpenAI batch line, else None.

        UsageError when there is not one record.
        """
        records = islice(sources.records(self._inputs, self._options.text_field), self._options.limit)
        seen: list[Record] = []
        url: object = None
        for record in islice(records, _PEEK):
            seen.append(record)
            kind = requests.is_openai(record.value, self._options.text_field)
            if record.text_field is not None or kind is not None:
                url = record.value.get("url", "") if kind and record.text_field is None else None
                break
        if not seen:
            raise UsageError(f"nothing to do: {', '.join(self._inputs)} has no line that is not blank")
        return chain(seen, records), url

    def _drafts(self) -> Iterator[list[_Draft]]:
        """Requests with their prompts, cut into chunks by number and by size."""
        drafts: list[_Draft] = []
        chars, size = 0, FIRST_CHUNK
        for ordinal, record in enumerate(self._records, 1):
            draft = self._draft(record, ordinal)
            drafts.append(draft)
            chars += sum(len(prompt.text) for prompt in draft.prompts)
            if len(drafts) >= size or chars >= CHUNK_CHARS:
                yield drafts
                drafts, chars, size = [], 0, CHUNK
        if drafts:
            yield drafts

    def _draft(self, record: Record, ordinal: int) -> _Draft:
        raw = requests.parse(record, ordinal, self._options, self._notices)
        if len(self._notices) > _MAX_NOTICES:
            (rarest, count) = self._notices.most_common()[-1]
            del self._notices[rarest]
            self._notices["other fields ignored"] += count
        if raw.error is not None:
            return _Draft(raw, [])
        try:
            return _Draft(raw, self._prompts.of(raw))
        except RequestError as error:
            return _Draft(_failed(raw, error), [])

    # -- tokenising ----------------------------------------------------------------------------------

    def _finish(self, drafts: Sequence[_Draft], tokens: Future[Sequence[_Encoded]]) -> list[NewRequest]:
        encoded = iter(tokens.result())
        return [self._request(draft, list(islice(encoded, len(draft.prompts)))) for draft in drafts]

    def _prepare(self, prompts: Sequence[Prompt]) -> Sequence[_Encoded]:
        encoded = self._encode(prompts)
        return encoded if self._pieces is None else self._pieces.cut(prompts, encoded)

    def _encode(self, prompts: Sequence[Prompt]) -> list[bytes | int]:
        """Each prompt's tokens, or only their number where no context could hold them."""
        encoded: list[bytes | int] = [prompt.tokens for prompt in prompts]
        for special in (False, True):
            at = [i for i, prompt in enumerate(prompts) if prompt.special is special and not prompt.tokens]
            for i in [i for i in at if len(prompts[i].text) > WHOLE_CHARS]:
                encoded[i] = self._tokens.count(prompts[i].text)
            whole = [i for i in at if encoded[i] == b"" or self._may_fit(encoded[i])]
            texts = [prompts[i].text for i in whole]
            for i, tokens in zip(whole, self._tokens.encode(texts, special=special), strict=True):
                encoded[i] = tokens
        return encoded

    def _may_fit(self, count: bytes | int) -> bool:
        """Whether a text of about `count` tokens might fit: counting in pieces is off by under 2 %."""
        return isinstance(count, int) and count < 1.02 * self._rows.context

    def _request(self, draft: _Draft, encoded: Sequence[_Encoded]) -> NewRequest:
        raw, shape, error = draft.raw, Shape.EACH, draft.raw.error
        rows: tuple[NewRow, ...] = ()
        if error is None:
            try:
                rows, shape = self._make_rows(draft, encoded)
            except RequestError as problem:
                error = str(problem)
        return NewRequest(
            custom_id=raw.custom_id,
            source=raw.source,
            rows=rows,
            error=error,
            shape=shape,
            extra=raw.extra,
            url=raw.url,
            made_id=raw.made_id,
        )

    def _make_rows(self, draft: _Draft, found: Sequence[_Encoded]) -> tuple[tuple[NewRow, ...], Shape]:
        settings = draft.raw.settings
        if self._pieces is not None:
            return self._pieces.rows(
                (text for text in found if not isinstance(text, bytes | int)), settings
            ), Shape.EACH
        encoded = [tokens for tokens in found if isinstance(tokens, bytes | int)]
        if self._parts is not None and self._options.split and len(encoded) == 1:
            document = draft.prompts[0].document
            count = encoded[0] if isinstance(encoded[0], int) else len(encoded[0]) // 4
            if document is not None and count + self._rows.wanted(settings)[0] > self._rows.context:
                return self._parts.cut(document, settings), Shape.REDUCE
        return tuple(self._row(tokens, settings) for tokens in encoded), Shape.EACH

    def _row(self, tokens: bytes | int, settings: Settings) -> NewRow:
        if isinstance(tokens, int):
            raise too_long(tokens, self._rows.context, about=True)
        if not tokens:
            raise RequestError("the prompt has no tokens: nothing to complete")
        return self._rows.row(tokens, settings)

    # -- checks --------------------------------------------------------------------------------------

    def _check_model(self, chat: ChatTemplate | None, folder: Path, *, raw: bool) -> None:
        """ModelError when the task needs a chat template and there is none; UsageError when it refuses the options."""
        if chat is None:
            if self._options.task is not Task.GENERATE or not raw:
                raise missing_template(folder)
            return
        if self._options.think is not None and not chat.can_think:
            self._notices["the model's chat template has no thinking switch: --think and --no-think change nothing"] = 0
        try:
            self._prompts.document("text")
        except RequestError as error:
            raise UsageError(f"with these options {error}") from error


def _failed(raw: RawRequest, error: RequestError) -> RawRequest:
    return replace(raw, error=str(error), content=NO_CONTENT, settings=NOTHING_SET)
