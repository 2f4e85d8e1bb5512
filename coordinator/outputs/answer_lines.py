"""An answer as a line of output: flat, as an OpenAI batch response, or as an entry of the errors file. Pure.

A flat line is `{id, text | label, finish_reason, input_tokens, output_tokens, error}`, then the input's other fields.
A request of several prompts has `texts`, a list, in place of `text`. Where a model thought before it answered,
`reasoning` (or `reasonings`) holds that. A failed one has a null text, the finish_reason
"error", and says why in `error`. An input field named like one of ours comes as `input_<name>`.
"""

from __future__ import annotations

import json
from collections.abc import Set
from typing import Any

from coordinator.records import Answer, JobRecord, Part
from fleet.job import Finish, RequestState, Task

Line = dict[str, Any]

#: The field that holds a model's thinking; with an s behind it, that of several prompts.
REASONING = "reasoning"
#: OpenAI knows no word for an empty answer, nor for thinking without an end.
_OPENAI_FINISH = {Finish.EMPTY: Finish.STOP, Finish.THINKING: Finish.LENGTH}
_CHAT = "/v1/chat/completions"
_ERROR_CODES = {RequestState.ERROR: "request_failed", RequestState.QUARANTINED: "quarantined"}


def flat_line(answer: Answer, task: Task) -> Line:
    """One flat object for a request that ended."""
    return _fields_of(answer, task) | carried(answer, own_fields(task))


def answer_field(task: Task) -> str:
    """The field that holds the answer; with an s behind it, that of several."""
    return "label" if task is Task.CLASSIFY else "text"


def own_fields(task: Task) -> frozenset[str]:
    """Names of a flat line that the input's fields must not have."""
    field = answer_field(task)
    shared = {"id", "finish_reason", "input_tokens", "output_tokens", "error"}
    return frozenset({field, f"{field}s", REASONING, f"{REASONING}s"} | shared)


def _fields_of(answer: Answer, task: Task) -> Line:
    field, done = answer_field(task), answer.state is RequestState.DONE
    line: Line = {"id": answer.custom_id}
    if done and len(answer.parts) > 1:
        line[f"{field}s"] = [part.text for part in answer.parts]
    else:
        line[field] = answer.parts[0].text if done else None
    line |= _reasoning(answer)
    line["finish_reason"] = _flat_finish(answer.parts) if done else Finish.ERROR.value
    line["input_tokens"] = answer.input_tokens
    line["output_tokens"] = answer.output_tokens
    line["error"] = answer.error
    return line


def _reasoning(answer: Answer) -> Line:
    if answer.state is not RequestState.DONE or not any(part.reasoning for part in answer.parts):
        return {}
    if len(answer.parts) > 1:
        return {f"{REASONING}s": [part.reasoning for part in answer.parts]}
    return {REASONING: answer.parts[0].reasoning}


def carried(answer: Answer, taken: Set[str]) -> Line:
    """The input's other fields, named apart from ours, which are `taken`."""
    line: Line = {}
    for name, value in json.loads(answer.extra or "{}").items():
        while name in taken or name in line:
            name = f"input_{name}"
        line[name] = value
    return line


def _flat_finish(parts: tuple[Part, ...]) -> str:
    """The finish reason; of several the first that is not a plain stop."""
    return next((part.finish.value for part in parts if part.finish is not Finish.STOP), Finish.STOP.value)


def as_bytes(line: Line) -> bytes:
    """The line as JSON in UTF-8 with a newline."""
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    # Half a surrogate pair has no UTF-8; a JSON escape is what the backslash form of it happens to be.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def openai_line(answer: Answer, job: JobRecord, body: Line | None = None) -> Line:
    """One line of an OpenAI batch's output, with a `body` of its own or that of a completion; of its errors when the
    request failed."""
    name = f"{job.id}_{answer.ordinal}"
    if answer.state is not RequestState.DONE:
        return {
            "id": f"batch_req_{name}",
            "custom_id": answer.custom_id,
            "response": None,
            "error": {"code": _ERROR_CODES[answer.state], "message": answer.error},
            "source": str(answer.source),
        }
    return {
        "id": f"batch_req_{name}",
        "custom_id": answer.custom_id,
        "response": {"status_code": 200, "request_id": f"req_{name}", "body": body or _body(answer, job, name)},
        "error": None,
    }


def _body(answer: Answer, job: JobRecord, name: str) -> Line:
    chat = answer.url == _CHAT
    return {
        "id": f"chatcmpl-{name}" if chat else f"cmpl-{name}",
        "object": "chat.completion" if chat else "text_completion",
        "created": int(job.created),
        "model": job.spec.model,
        "choices": [_choice(index, part, chat=chat) for index, part in enumerate(answer.parts)],
        "usage": {
            "prompt_tokens": answer.input_tokens,
            "completion_tokens": answer.output_tokens,
            "total_tokens": answer.input_tokens + answer.output_tokens,
        },
    }


def _choice(index: int, part: Part, *, chat: bool) -> Line:
    thought: Line = {"reasoning_content": part.reasoning} if part.reasoning else {}
    if chat:
        content: Line = {"message": {"role": "assistant", "content": part.text, **thought}}
    else:
        content = {"text": part.text, **thought}
    finish = _OPENAI_FINISH.get(part.finish, part.finish)
    return {"index": index, **content, "logprobs": None, "finish_reason": finish.value}


def error_line(answer: Answer) -> Line:
    """An entry of the errors file beside a flat output."""
    return {"id": answer.custom_id, "source": str(answer.source), "error": answer.error}
