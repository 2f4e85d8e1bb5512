"""Inputs to requests, over a real tokenizer and chat template."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from coordinator.intake.intake import CHUNK, FIRST_CHUNK, Intake, IntakeOptions
from coordinator.intake.tokens import unpack
from coordinator.ledger.ledger import Ledger
from coordinator.records import NewRequest, Shape
from fleet.config import StateDir
from fleet.errors import ModelError, UsageError
from fleet.job import RequestState, Task
from tests.bare_model import CONTEXT_TOKENS, SPECIAL, bare_model, train_tokenizer
from tests.cases import CASES, OK, Case, chat, line, lines
from tests.ledgers import spec

TOKENIZER = train_tokenizer()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def take(model: Path, tmp_path: Path) -> Callable[..., Intake]:
    def make(data: bytes | list[str], folder: Path = model, **options: Any) -> Intake:
        inputs = data
        if isinstance(data, bytes):
            file = tmp_path / "in.jsonl"
            file.write_bytes(data)
            inputs = [str(file)]
        asked = IntakeOptions(**{"task": Task.GENERATE, "model": "m", **options})
        return Intake(inputs, asked, folder, "hash")

    return make


def requests(intake: Intake) -> list[NewRequest]:
    return [request for chunk in intake.chunks() for request in chunk]


def prompt(request: NewRequest, row: int = 0) -> str:
    text: str = TOKENIZER.decode(unpack(request.rows[row].tokens), skip_special_tokens=False)
    return text


def asked(text: str, system: str = "") -> str:
    """What the model sees of one user message."""
    before = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return f"{before}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


# -- hostile backlogs --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in CASES if not case.refused], ids=lambda case: case.name)
def test_a_hostile_backlog_gives_its_rows_and_its_errors(
    case: Case, take: Callable[..., Intake], tmp_path: Path
) -> None:
    intake = take(case.data)
    with Ledger.open(StateDir(tmp_path / "state")) as ledger:
        job, _ = ledger.begin_job(spec())
        for chunk in intake.chunks():
            ledger.add_requests(job.id, chunk)
        answers = list(ledger.answers(job.id))
    errors = [(answer.source.line, answer.error or "") for answer in answers if answer.state is RequestState.ERROR]
    assert [number for number, _ in errors] == [number for number, _ in case.errors]
    assert len(answers) - len(errors) == case.rows
    for (_, text), (_, piece) in zip(errors, case.errors, strict=True):
        assert piece in text


@pytest.mark.parametrize("case", [case for case in CASES if case.refused], ids=lambda case: case.name)
def test_a_backlog_without_a_line_is_refused_before_any_work(case: Case, take: Callable[..., Intake]) -> None:
    with pytest.raises(UsageError, match="nothing to do"):
        take(case.data)


def test_line_ends_and_a_byte_order_mark_change_no_row_key(take: Callable[..., Intake]) -> None:
    plain = [request.rows[0].key for request in requests(take(lines(*OK)))]
    for data in (b"\r\n".join(OK) + b"\r\n", b"\xef\xbb\xbf" + b"\n".join(OK)):
        assert [request.rows[0].key for request in requests(take(data))] == plain


def test_text_that_looks_like_a_template_reaches_the_model_unchanged(take: Callable[..., Intake]) -> None:
    text = '{"a": 1} lone } {text} 100% {name} {{x}} {% raw %} %s <b>$HOME `id`</b>'
    (request,) = requests(take(lines(line(chat("t", text))), prompt_template="Say: {text}"))
    assert prompt(request) == asked("Say: " + text)


def test_equal_greedy_prompts_have_one_key_under_any_id(take: Callable[..., Intake]) -> None:
    keys = {r.rows[0].key for r in requests(take(lines(*(line(chat(f"s{n}", "Same.")) for n in range(50)))))}
    assert len(keys) == 1


def test_a_15_mb_line_costs_a_few_times_its_size(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "big.jsonl"
    file.write_bytes(next(case.data for case in CASES if case.name == "big_line"))
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from coordinator.intake.intake import Intake, IntakeOptions\n"
        "from fleet.job import Task\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "options = IntakeOptions(task=Task.GENERATE, model='m')\n"
        "[*Intake([sys.argv[1]], options, Path(sys.argv[3]), 'h').chunks()]\n"
        "before = peak()\n"
        "[*Intake([sys.argv[2]], options, Path(sys.argv[3]), 'h').chunks()]\n"
        "print(peak() - before)\n"
    )
    small = tmp_path / "small.jsonl"
    small.write_bytes(lines(*OK))
    command = [sys.executable, "-c", script, str(small), str(file), str(model)]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    unit = 1 if sys.platform == "darwin" else 1024
    assert grown * unit < 8 * 15_000_000


# -- requests ----------------------------------------------------------------------------------------


def test_messages_go_through_the_models_chat_template(take: Callable[..., Intake]) -> None:
    (request,) = requests(take(lines(line(chat("a", "Name a colour.")))))
    assert prompt(request) == asked("Name a colour.")
    assert request.custom_id == "a"
    assert request.url == "/v1/chat/completions"
    assert request.rows[0].max_tokens == 8


def test_a_completions_prompt_is_raw_and_a_list_of_them_is_several_rows(take: Callable[..., Intake]) -> None:
    body = {"prompt": ["Once", "Twice"], "max_tokens": 4}
    data = lines(line({"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": body}))
    (request,) = requests(take(data))
    assert [prompt(request, row) for row in range(2)] == ["Once", "Twice"]
    assert request.shape is Shape.EACH


def test_token_ids_are_taken_as_they_are_and_checked_against_the_vocabulary(take: Callable[..., Intake]) -> None:
    def completion(prompt: object) -> bytes:
        return line({"custom_id": str(prompt), "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt}})

    one, two, outside = requests(take(lines(completion([5, 6, 7]), completion([[5], [6]]), completion([5, 99_999]))))
    assert unpack(one.rows[0].tokens) == [5, 6, 7]
    assert [unpack(row.tokens) for row in two.rows] == [[5], [6]]
    assert outside.error is not None
    assert "99999" in outside.error


def test_flat_lines_give_prompts_ids_and_carry_their_other_fields(take: Callable[..., Intake]) -> None:
    data = lines(
        line({"id": 7, "prompt": "A", "topic": "x", "max_tokens": 3}),
        line({"text": "B", "score": [1.5]}),
        line({"messages": [{"role": "user", "content": "C"}]}),
    )
    intake = take(data)
    a, b, c = requests(intake)
    assert [a.custom_id, b.custom_id, c.custom_id] == ["7", "row-2", "row-3"]
    assert [prompt(request) for request in (a, b, c)] == [asked("A"), asked("B"), asked("C")]
    assert json.loads(a.extra) == {"topic": "x"}
    assert json.loads(b.extra) == {"score": [1.5]}
    assert a.rows[0].max_tokens == 3
    assert not intake.is_openai
    assert take(lines(*OK)).is_openai


def test_a_system_prompt_goes_in_front_of_messages_that_have_none(take: Callable[..., Intake]) -> None:
    own = [{"role": "developer", "content": "Mine."}, {"role": "user", "content": "B"}]
    data = lines(line({"prompt": "A"}), line({"messages": own}))
    a, b = requests(take(data, system="Be brief."))
    assert prompt(a) == asked("A", "Be brief.")
    assert prompt(b) == asked("B", "Mine.")


def test_the_body_wins_over_the_commands_options_except_for_the_model(take: Callable[..., Intake]) -> None:
    data = lines(
        line(chat("a", "A", temperature=0.5, seed=3, model="gpt-x")),
        line({"custom_id": "b", "method": "POST", "url": "/v1/chat/completions",
              "body": {"messages": [{"role": "user", "content": "B"}], "model": "gpt-x", "mood": 1}}),
    )  # fmt: skip
    intake = take(data, temperature=1.0, top_p=0.9, max_tokens=40, stop=("END",))
    a, b = (request.rows[0] for request in requests(intake))
    assert (a.sampling.temperature, a.sampling.seed, a.max_tokens) == (0.5, 3, 8)
    assert (b.sampling.temperature, b.sampling.top_p, b.max_tokens) == (1.0, 0.9, 40)
    assert a.sampling.stop == b.sampling.stop == ("END",)
    assert intake.warnings == [
        '-m wins over body.model "gpt-x" (2 lines)',
        'unknown field "mood" ignored (1 line)',
    ]


def test_default_max_tokens_are_clamped_and_given_ones_are_an_error(take: Callable[..., Intake]) -> None:
    text = "word " * 1700  # a token a word
    short = {"messages": [{"role": "user", "content": text}]}
    (request,) = requests(take(lines(line(short))))
    assert request.rows[0].length + request.rows[0].max_tokens == CONTEXT_TOKENS
    for data, options in (
        (lines(line({**short, "max_tokens": 1000})), {}),
        (lines(line(short)), {"max_tokens": 1000}),
    ):
        (request,) = requests(take(data, **options))
        assert request.error is not None
        assert "max_tokens is 1,000" in request.error
        assert "2,048" in request.error


def test_equal_sampled_prompts_are_separate_draws_unless_they_bring_a_seed(take: Callable[..., Intake]) -> None:
    def keys(**body: object) -> list[bytes]:
        data = lines(*(line(chat(f"s{n}", "Same.", temperature=1, **body)) for n in range(3)))
        return [request.rows[0].key for request in requests(take(data, seed=9))]

    assert len(set(keys())) == 3
    assert keys() == keys()
    assert len(set(keys(seed=1))) == 1


def test_a_salt_makes_every_row_new(take: Callable[..., Intake]) -> None:
    bare, made = take(lines(*OK)), take(lines(*OK))
    made.use_salt("x")
    plain, salted = requests(bare), requests(made)
    assert [r.custom_id for r in plain] == [r.custom_id for r in salted]
    assert {r.rows[0].key for r in plain}.isdisjoint(r.rows[0].key for r in salted)


# -- tasks -------------------------------------------------------------------------------------------


def test_classify_constrains_to_the_labels_tokens(take: Callable[..., Intake]) -> None:
    labels = ("yes", "no", "a good word")
    (request,) = requests(take(lines(line({"text": "Is it?"})), task=Task.CLASSIFY, labels=labels, temperature=1.0))
    row = request.rows[0]
    assert [TOKENIZER.decode(list(ids)) for ids in row.sampling.label_tokens] == list(labels)
    assert row.sampling.temperature == 0
    assert row.max_tokens == max(map(len, row.sampling.label_tokens)) + 1
    assert "yes, no, a good word" in prompt(request)
    assert "Is it?" in prompt(request)


def test_summarize_takes_the_text_the_prompt_or_the_last_user_message(take: Callable[..., Intake]) -> None:
    data = lines(line({"text": "T"}), line({"prompt": "P"}), line(chat("m", "M")))
    for request, text in zip(requests(take(data, task=Task.SUMMARIZE)), "TPM", strict=True):
        assert prompt(request) == asked(f"Summarize the following text in two or three sentences.\n\n{text}")
        assert request.shape is Shape.EACH


def test_a_long_document_becomes_parts_and_then_one_summary(take: Callable[..., Intake]) -> None:
    text = "\n\n".join(f"The senate met on day {day}. The people of the states were told." for day in range(300))
    intake = take(lines(line({"text": text})), task=Task.SUMMARIZE)
    (request,) = requests(intake)
    assert request.shape is Shape.REDUCE
    assert len(request.rows) > 2
    assert all(row.length + row.max_tokens <= CONTEXT_TOKENS for row in request.rows)
    before = asked("Summarize the following text in two or three sentences.\n\n").split("<|im_end|>")[0]
    parts = [prompt(request, n).removeprefix(before).split("<|im_end|>")[0] for n in range(len(request.rows))]
    assert "".join(parts) == text
    (row,) = intake.reduce(["One part.", "Another part."])
    assert "One part.\n\nAnother part." in TOKENIZER.decode(unpack(row.tokens))


def test_without_splitting_a_long_document_is_an_error_with_figures(take: Callable[..., Intake]) -> None:
    (request,) = requests(take(lines(line({"text": "word " * 3000})), task=Task.SUMMARIZE, split=False))
    assert request.error is not None
    assert "expected fewer than 2,048" in request.error


# -- inputs ------------------------------------------------------------------------------------------


def test_several_inputs_of_different_kinds_follow_each_other(take: Callable[..., Intake], tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    (folder / "b.txt").write_bytes(b"\xef\xbb\xbfBee")
    (folder / "deep" / "a.md").write_text("Ay")
    (folder / "c.txt").write_bytes(b"caf\xe9")
    (folder / "d.txt").write_text(" \n")
    (folder / "picture.png").write_bytes(b"\x89")
    (tmp_path / "table.csv").write_text('key,text\n1,"x, y"\n2\n')
    inputs = [str(folder), str(tmp_path / "table.csv")]
    found = [(r.custom_id, r.source.line, r.error) for r in requests(take(inputs, task=Task.SUMMARIZE))]
    assert found == [
        ("b.txt", 0, None),
        ("c.txt", 0, "not UTF-8: found byte 0xE9 at byte 4: save the file as UTF-8"),
        ("d.txt", 0, "text is empty: nothing to summarize"),
        ("deep/a.md", 0, None),
        ("row-5", 2, None),
        (None, 3, "found 1 fields, expected 2 as in the header"),
    ]


def test_standard_input_is_read_as_json_lines(take: Callable[..., Intake], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(*OK))))
    intake = take(["-"])
    assert intake.signature() == ""
    assert [request.source.file for request in requests(intake)] == ["stdin"] * 4


def test_limit_takes_the_first_requests_bad_ones_included(take: Callable[..., Intake]) -> None:
    found = requests(take(lines(OK[0], b"nonsense", *OK[1:]), limit=3))
    assert [request.error is None for request in found] == [True, False, True]


def test_chunks_are_small_first_and_read_no_further_than_asked(take: Callable[..., Intake]) -> None:
    data = lines(*(line({"prompt": f"Name {number}"}) for number in range(5 * CHUNK)))
    intake = take(data)
    chunks = intake.chunks()
    assert [len(chunk) for chunk in islice(chunks, 2)] == [FIRST_CHUNK, CHUNK]
    assert sum(map(len, chunks)) == 5 * CHUNK - FIRST_CHUNK - CHUNK


def test_the_signature_changes_with_an_input_or_the_prompt_template(
    take: Callable[..., Intake], tmp_path: Path
) -> None:
    (tmp_path / "template").write_text("A {text}")
    options = {"prompt_template": str(tmp_path / "template")}
    first = take(lines(*OK), **options).signature()
    assert take(lines(*OK, OK[0]), **options).signature() != first
    same = take([str(tmp_path / "in.jsonl")], **options).signature()
    (tmp_path / "template").write_text("B {text}")
    assert take([str(tmp_path / "in.jsonl")], **options).signature() != same


# -- refused before any work -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_tokens": CONTEXT_TOKENS}, "expected fewer than 2,048"),
        ({"max_tokens": 0}, "positive integer"),
        ({"temperature": 3.0}, "from 0 to 2"),
        ({"top_p": 0.0}, "top_p"),
        ({"limit": 0}, "limit"),
        ({"task": Task.CLASSIFY}, "--labels"),
        ({"task": Task.CLASSIFY, "labels": ("a", "a")}, "twice"),
        ({"task": Task.CLASSIFY, "labels": ("a", " ")}, "empty"),
        ({"labels": ("a",)}, "classify only"),
        ({"prompt_template": "no place"}, "{text}"),
        ({"prompt_template": "x" * 5000}, "{text}"),
        ({"system": "\udcff"}, "UTF-8"),
    ],
)
def test_options_that_cannot_work_are_refused(
    take: Callable[..., Intake], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence.replace("{", r"\{")):
        take(lines(*OK), **options)


def test_a_missing_input_is_named(take: Callable[..., Intake], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.jsonl"):
        take([str(tmp_path / "nowhere.jsonl")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no text files"):
        take([str(tmp_path / "empty")])


def test_a_model_without_chat_template_serves_raw_completions_only(take: Callable[..., Intake], tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "base", template=None)
    with pytest.raises(ModelError, match=r"chat_template\.jinja"):
        take(lines(*OK), folder)
    raw = line({"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once"}})
    done, error = requests(take(lines(raw, OK[0]), folder))
    assert prompt(done) == "Once"
    assert error.error is not None
    assert "no chat template" in error.error


def test_a_template_that_refuses_the_system_prompt_is_said_at_once(take: Callable[..., Intake], tmp_path: Path) -> None:
    strict = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    folder = bare_model(tmp_path / "strict", template=strict)
    with pytest.raises(UsageError, match="no system role here"):
        take(lines(*OK), folder, system="Be brief.")
    own = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    (request,) = requests(take(lines(line({"messages": own})), folder))
    assert request.error is not None
    assert "no system role here" in request.error


def test_special_tokens_stand_in_the_prompt_as_single_ids(take: Callable[..., Intake]) -> None:
    (request,) = requests(take(lines(OK[0])))
    ids = unpack(request.rows[0].tokens)
    assert ids[0] == SPECIAL.index("<|im_start|>")
    assert ids.count(SPECIAL.index("<|im_start|>")) == 2


def test_a_thinking_flag_that_the_template_does_not_know_is_told(take: Callable[..., Intake]) -> None:
    (warning,) = take(lines(OK[0]), think=True).warnings
    assert "no thinking switch" in warning
    assert take(lines(OK[0])).warnings == []
