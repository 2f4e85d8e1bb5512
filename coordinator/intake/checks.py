"""What the options of a job must satisfy before a line is read."""

from __future__ import annotations

from coordinator.intake import fields
from coordinator.intake.options import IntakeOptions
from coordinator.intake.prompts import Prompts
from coordinator.intake.tokens import Tokens, unpack
from coordinator.intake.vector_options import DTYPES, LONG
from fleet.errors import RequestError, UsageError
from fleet.job import Task


def check_options(options: IntakeOptions, context: int) -> None:
    """Raises UsageError for an option that no request could be run with."""
    given = {name: getattr(options, name) for name in ("max_tokens", "temperature", "top_p", "seed")}
    try:
        fields.settings({**given, "stop": list(options.stop)})
    except RequestError as error:
        raise UsageError(f"option {error}") from error
    if options.max_tokens is not None and options.max_tokens >= context:
        raise UsageError(
            f"option max_tokens: found {options.max_tokens:,}, expected fewer than {context:,}, the model's context"
        )
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"option limit: found {options.limit}, expected a positive integer")
    _check_embedding(options)
    if options.task is Task.CLASSIFY:
        _check_labels(options.labels)
    elif options.labels:
        raise UsageError("labels go with classify only")
    names = (options.id_field, options.text_field, options.prompt_name)
    texts = (options.system, options.prompt_template, *names, *options.labels)
    for text in (*texts, *options.stop):
        if text is not None and not _is_unicode(text):
            raise UsageError("an option is not valid UTF-8 text")


def _check_embedding(options: IntakeOptions) -> None:
    """Options of an answer go with the other tasks, those of a vector with embed."""
    asked = {
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seed": options.seed,
        "stop": options.stop,
        "system": options.system,
        "prompt_template": options.prompt_template,
        "think": options.think,
    }
    if options.task is not Task.EMBED:
        plain = IntakeOptions(task=options.task, model=options.model)
        of_vectors = ("long", "dtype", "dimensions", "prompt_name")
        asked = {name: getattr(options, name) != getattr(plain, name) or None for name in of_vectors}
    for name, value in asked.items():
        if value not in (None, ()):
            with_ = "does not go with embed" if options.task is Task.EMBED else "goes with embed only"
            raise UsageError(f"option {name} {with_}")
    if options.long not in ("", *LONG):
        raise UsageError(f"option long: found {options.long!r}, expected {' or '.join(LONG)}")
    if options.dtype not in DTYPES:
        raise UsageError(f"option dtype: found {options.dtype!r}, expected {' or '.join(DTYPES)}")


def _check_labels(labels: tuple[str, ...]) -> None:
    if not labels:
        raise UsageError("classify needs labels: give --labels a,b,c")
    if any(not label.strip() for label in labels):
        raise UsageError("a label is empty")
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UsageError(f"the label {twice!r} is given twice")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def label_tokens(labels: tuple[str, ...], tokens: Tokens, prompts: Prompts) -> tuple[tuple[int, ...], ...]:
    """Each label as the model would write it right after the prompt; UsageError when two are the same tokens."""
    prompt = prompts.document("text")
    before, *after = (unpack(packed) for packed in tokens.encode([prompt, *(prompt + label for label in labels)]))
    alone = [unpack(packed) for packed in tokens.encode(labels)]
    encoded = [
        tuple(joined[len(before) :] if joined[: len(before)] == before else apart)
        for joined, apart in zip(after, alone, strict=True)
    ]
    for label, ids in zip(labels, encoded, strict=True):
        if not ids:
            raise UsageError(f"the label {label!r} has no tokens in this model: choose another word")
        if encoded.count(ids) > 1:
            raise UsageError(f"the label {label!r} has the same tokens as another in this model: choose another word")
    return tuple(encoded)
