"""Chat templates: the same text that transformers would make, and sentences for what goes wrong."""

import json
from datetime import date
from pathlib import Path

import pytest

from coordinator.intake.chat import ChatTemplate, load_chat_template
from fleet.errors import ModelError, RequestError
from tests.bare_model import TEMPLATE, bare_model

TODAY = date(2026, 3, 4)
THINKING = (
    "{%- set ns = namespace(last=messages|length - 1) %}\n"
    "{%- for message in messages %}\n"
    "    {%- if message.role == 'system' %}\n"
    "        {{- '<|im_start|>system\\n' + message.content | trim + '<|im_end|>\\n' }}\n"
    "        {%- continue %}\n"
    "    {%- endif %}\n"
    "    {%- generation %}{{- bos_token + message.role + ': ' + message.content | tojson }}{%- endgeneration %}\n"
    "{%- endfor %}\n"
    "{%- if tools %}{{- tools | tojson(indent=2) }}{%- endif %}\n"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}\n"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}\n"
)
MESSAGES = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "<b>\u00e9 & 'x'</b> {{ y }} </think>"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "More\n"},
]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}, today=TODAY, where="here")


@pytest.mark.parametrize(
    ("source", "off", "on"),
    [
        ("{{ messages[0].content if enable_thinking is defined and not enable_thinking else 'x' }}", "hi", "x"),
        ("{% if not thinking is defined %}{% set thinking = 3 %}{% endif %}{{ thinking }}", "False", "True"),
        ("{% set thinking = 3 %}{{ thinking }} enable_thinking", "3 enable_thinking", "3 enable_thinking"),
    ],
)
def test_the_thinking_switch_is_told_by_the_name_that_the_template_reads(source: str, off: str, on: str) -> None:
    chat = template(source)
    assert chat.can_think == (on != off)
    hello = [{"role": "user", "content": "hi"}]
    assert [chat.render(hello, think=think) for think in (False, True)] == [off, on]


LOOPING = (
    "{% for message in messages %}{{ loop.first }} {{ loop.last }} {{ loop.index }} {{ loop.index0 }} "
    "{{ loop.length }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.cycle('a', 'b') }} "
    "{{ loop.previtem }} {{ loop.depth }}\n"
    "{% endfor %}"
)


@pytest.mark.parametrize("source", [TEMPLATE, THINKING, LOOPING])
@pytest.mark.parametrize("think", [True, False])
def test_the_text_is_the_one_transformers_makes(source: str, think: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    switch = {"enable_thinking": think} if "enable_thinking" in source else {}
    expected, _ = render_jinja_template(
        [MESSAGES], chat_template=source, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", **switch
    )
    assert template(source).render(MESSAGES, think=think) == expected[0]


def test_a_template_that_asks_for_the_date_is_told_the_jobs() -> None:
    assert template("{{ strftime_now('%d %b %Y') }}").render(MESSAGES, think=False) == "04 Mar 2026"


def test_a_template_that_refuses_or_fails_makes_a_request_error() -> None:
    for source, sentence in (
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[9].content + 1 }}", "refuses these messages"),
        ("{{ messages[0].content.__class__.__mro__ }}", "refuses these messages"),
        ("{% for message in messages %}{{ loop.__class__.__mro__ }}{% endfor %}", "refuses these messages"),
        ("{% for message in messages %}{{ messages.append(message) }}{% endfor %}", "refuses these messages"),
    ):
        with pytest.raises(RequestError, match=sentence):
            template(source).render(MESSAGES, think=False)


def test_a_template_with_a_syntax_error_is_a_model_error_that_names_it() -> None:
    with pytest.raises(ModelError, match="here"):
        template("{% for %}")


def test_the_template_is_found_in_any_of_its_files(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m", template=None)
    assert load_chat_template(folder, TODAY) is None
    config = folder / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "named{{ eos_token }}"}]
    config.write_text(json.dumps({"eos_token": {"content": "</s>"}, "chat_template": named}))
    assert render(folder) == "named</s>"
    config.write_text(json.dumps({"chat_template": "config"}))
    assert render(folder) == "config"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert render(folder) == "json"
    (folder / "chat_template.jinja").write_text("jinja")
    assert render(folder) == "jinja"


def render(folder: Path) -> str:
    found = load_chat_template(folder, TODAY)
    assert found is not None
    return found.render(MESSAGES, think=False)


def test_a_broken_tokenizer_config_is_a_model_error_that_names_it(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        load_chat_template(folder, TODAY)
