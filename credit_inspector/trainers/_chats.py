"""Chats as trainers log them → prompt, response, and the text of both.

A chat's messages up to the first one that the policy wrote are the prompt, all others the response: tool results between
two turns of the policy belong to the response, as they do in token form. Calls of tools are text that the policy wrote,
so they stand in the text too. The messages themselves stay in ``Rollout.extra`` as they were.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from credit_inspector.rollout import Problem
from credit_inspector.trainers._rows import Item
from credit_inspector.trainers._values import text

Message = Mapping[str, Any]


def is_chat(value: Any) -> bool:
    """Whether a value is a list of messages with a role each."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) and "role" in one for one in value)


def by_assistant(message: Message) -> bool:
    """Whether a message is the policy's where only roles say so."""
    return message.get("role") == "assistant"


def parted(
    messages: Sequence[Message], begin: int | None = None, own: Callable[[Message], bool] = by_assistant
) -> dict[str, Any]:
    """A chat under our names.

    Args:
        messages: the whole chat.
        begin: place of the first message of the response; by default the first of the policy's own.
        own: which messages the policy wrote.

    Returns:
        ``prompt`` (left as messages, so that a reader knows that the template is missing), ``response`` (text), and the
        response's messages under ``response_messages``.
    """
    first = next((place for place, one in enumerate(messages) if own(one)), len(messages)) if begin is None else begin
    prompt, response = list(messages[:first]), list(messages[first:])
    return {
        "prompt": [_with_text(one) for one in prompt],
        "response": text([_with_text(one) for one in response]) if response else None,
        "response_messages": response,
    }


def _with_text(message: Message) -> Message:
    """The message with everything that was said in its content: parts, thinking and calls of tools."""
    content = said(message.get("content"))
    calls = [] if _holds_calls(message.get("content")) else _calls(message)
    return {**message, "content": "\n".join(part for part in (content, *calls) if part)}


def said(content: Any) -> str:
    """The text of a message's content, which is text or a list of parts."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(said, content)))
    if isinstance(content, Mapping):
        for key in ("text", "thinking", "raw_text"):
            if isinstance(content.get(key), str):
                return str(content[key])
        return text({key: value for key, value in content.items() if key != "type"}) or ""
    return text(content) or ""


def _holds_calls(content: Any) -> bool:
    return isinstance(content, list) and any(isinstance(part, Mapping) and "tool_call" in part for part in content)


def _calls(message: Message) -> list[str]:
    calls = message.get("tool_calls")
    listed = _listed(calls) if isinstance(calls, str) else calls
    if not isinstance(listed, list):
        return []
    return [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False, default=str) for one in listed]


def _listed(calls: str) -> list[Any]:
    """The calls that a text of JSON lists, else the text as the one call."""
    try:
        found = json.loads(calls)
    except (ValueError, RecursionError):
        return [calls]
    return found if isinstance(found, list) else [calls]


# ── what data may do to us ──────────────────────────────────────────────────────────────────────────────────────────


def made(make: Callable[[], Iterable[Item]], what: str) -> list[Item]:
    """The rows that a row becomes; a problem in their place where it is nested more deeply than Python walks."""
    try:
        return list(make())
    except RecursionError:
        return [Problem("bad-line", f"{what} is nested too deeply, skipped")]


def word(value: Any) -> str:
    """A value as a short name; nothing for what is none."""
    return str(value)[:200] if isinstance(value, str | int | float) else ""
