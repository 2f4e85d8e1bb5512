"""What a command says about how its backlog becomes rows."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.job import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeOptions:
    """The options of `fleet run` that decide which rows there are; a request's own body wins over them."""

    task: Task
    #: the model as given; wins over a body's `model`
    model: str
    #: new tokens at most; None is the task's default, which is clamped to the context where a given one is not
    max_tokens: int | None = None
    #: None is 0, greedy
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    #: put in front of messages that have no system message
    system: str | None = None
    #: a template with `{text}` in it, or the file that holds one
    prompt_template: str | None = None
    #: field that holds a request's id
    id_field: str | None = None
    #: field or column that holds a request's text
    text_field: str | None = None
    #: take only so many requests
    limit: int | None = None
    #: classify: the allowed answers
    labels: tuple[str, ...] = ()
    #: summarize: documents over the context are summarized in parts; False makes them errors
    split: bool = True
    #: for templates with a thinking switch; None is off
    think: bool | None = None
    #: embed: what becomes of a text over the model's max_seq_length, see `vector_options.LONG`; empty is chunk, and
    #: error in OpenAI batch lines, whose answers have one vector a text
    long: str = ""
    #: embed: of the numbers in a vector, float32 or float16
    dtype: str = "float32"
    #: embed: numbers in a vector, where the model declares that fewer may do; 0 for all
    dimensions: int = 0
    #: embed: name of the model's prompt that is put before each text; None for its default
    prompt_name: str | None = None
    #: ISO date that templates are told when they ask for one; empty for today
    today: str = ""
