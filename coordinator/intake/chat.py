"""A model's chat template, rendered as transformers renders it, without loading transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fleet.errors import ModelError, RequestError

_CONFIG_FILE = "tokenizer_config.json"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


#: What templates call their thinking switch: most, and DeepSeek's.
_SWITCHES = ("enable_thinking", "thinking")
#: What templates ask a loop for: where it is.
_LOOP_PLACE = frozenset({"first", "last", "index", "index0", "length", "revindex", "revindex0"})


class ChatTemplate:
    """Turns messages into the text a model was trained to answer."""

    def __init__(self, source: str, *, special_tokens: dict[str, str], today: date, where: str) -> None:
        environment = _environment(today)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the chat template in {where} cannot be read: {error}") from error
        # jinja chains two dicts here and merges them at each rendering, which a plain one makes 1.4x faster
        self._template.globals = dict(self._template.globals)
        self._special_tokens = special_tokens
        asked = meta.find_undeclared_variables(environment.parse(source))
        self._switch = next((name for name in _SWITCHES if name in asked), None)

    @property
    def can_think(self) -> bool:
        """Whether the template has a thinking switch."""
        return self._switch is not None

    def render(self, messages: Sequence[dict[str, str]], *, think: bool) -> str:
        """The prompt up to where the answer begins; RequestError when the template refuses `messages`."""
        switch = {self._switch: think} if self._switch else {}
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
                **switch,
            )
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise RequestError(f"the model's chat template refuses these messages: {error}") from error


def load_chat_template(folder: Path, today: date) -> ChatTemplate | None:
    """The template of the model in `folder`, None when it has none."""
    config = _read_object(folder / _CONFIG_FILE)
    special_tokens = {name: text for name in _SPECIAL_TOKENS if (text := _token_text(config.get(name))) is not None}
    found = _find_source(folder, config)
    if found is None:
        return None
    source, where = found
    return ChatTemplate(source, special_tokens=special_tokens, today=today, where=where)


def missing_template(folder: Path) -> ModelError:
    """The error for a model that has no chat template where one is needed."""
    return ModelError(
        f"{folder} has no chat template (chat_template.jinja, or chat_template in {_CONFIG_FILE}): "
        "use an instruction-tuned model, or /v1/completions lines"
    )


def _find_source(folder: Path, config: dict[str, Any]) -> tuple[str, str] | None:
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        try:
            return jinja.read_text(encoding="utf-8"), str(jinja)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{jinja} cannot be read: {error}") from error
    for file, holder in (("chat_template.json", _read_object(folder / "chat_template.json")), (_CONFIG_FILE, config)):
        source = holder.get("chat_template")
        if isinstance(source, list):  # several named templates
            named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
            source = named.get("default")
        if isinstance(source, str) and source:
            return source, str(folder / file)
    return None


def _read_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    return value if isinstance(value, dict) else {}


def _token_text(token: object) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's own, which looks long at each `loop.first` to find it harmless: known at once here."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may have this attribute."""
        return (type(obj) is LoopContext and attr in _LOOP_PLACE) or super().is_safe_attribute(obj, attr, value)


def _environment(today: date) -> ImmutableSandboxedEnvironment:
    """Jinja as chat templates expect it: what transformers gives them, and no more."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = today.strftime
    return environment


class _Generation(Extension):
    """`{% generation %}` marks an answer for training; here it is only a block."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own way to name them)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
