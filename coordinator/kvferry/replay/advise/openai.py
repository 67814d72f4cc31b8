"""Requests of a log in the way of the OpenAI API: JSON lines with ``messages`` or ``prompt``.

The prompts' texts are compared in pieces, from the beginning. Tokens are those of ``usage`` where
the line has it, else estimated from characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import msgspec

from kvferry.errors import ConfigError
from kvferry.replay.advise.prompts import Prompt

CHUNK_CHARS = 256
CHARS_PER_TOKEN = 4.0
"""Of English text, roughly; used where a line has no ``usage``."""
PROMPT_CHUNKS_MIN = 4
"""A plain prompt is recognised as the beginning of a later one from so many pieces on."""
LINES_MAX = 1_000_000
MILLISECONDS_FROM = 1e11
"""A time that is a larger number counts milliseconds: as seconds it were the year 5138."""
_TIMES = ("timestamp", "time", "ts", "created", "created_at")
_SESSIONS = ("session", "session_id", "conversation_id")
_USERS = ("user", "user_id")
"""A user has several conversations, so a user's name only keeps those of different ones apart."""
_INNER = ("body", "request")
ASSUMED = (
    f"prompts are compared in pieces of {CHUNK_CHARS} characters, as role and text of each "
    f"message; where a line has no usage.prompt_tokens, tokens are estimated at "
    f"{CHARS_PER_TOKEN:g} characters each"
)


class OpenAILog:
    """Reads such a log, line by line.

    Args:
        name: the option and the file, for errors.

    Attributes:
        estimated: requests whose tokens had to be estimated.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.estimated = 0

    def prompts(self, file: Iterable[bytes]) -> Iterator[Prompt]:
        """The requests.

        Raises:
            ConfigError: a line cannot be used; names it and the cure.
        """
        before_s, found, decoder = float("-inf"), 0, msgspec.json.Decoder(dict[str, Any])
        for number, raw in enumerate(file, start=1):
            if found == LINES_MAX:
                break
            if not raw.strip():
                continue
            try:
                line = decoder.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise self._bad(
                    number, str(error), "a line is a JSON object with messages or prompt"
                ) from error
            prompt = self._prompt(number, line)
            if prompt.at_s < before_s:
                raise self._bad(
                    number,
                    f"its time is {before_s - prompt.at_s:g} s before that of the line before",
                    "sort the lines by time",
                )
            before_s, found = prompt.at_s, found + 1
            yield prompt
        if not found:
            raise ConfigError(
                f"{self._name} holds no requests: give JSON lines with messages or prompt"
            )

    def _prompt(self, number: int, line: dict[str, Any]) -> Prompt:
        inner = next((line[key] for key in _INNER if isinstance(line.get(key), dict)), line)
        messages, text = inner.get("messages"), inner.get("prompt")
        if isinstance(messages, list) and messages:
            pieces = [self._message(number, one) for one in messages]
        elif isinstance(text, str) and text:
            pieces = [("", text)]
        else:
            raise self._bad(
                number,
                "neither messages nor prompt",
                "log requests as the OpenAI API takes them: a list messages, or a text prompt",
            )
        at_s = self._time(number, line, inner)
        whole = sum(len(piece) for _, piece in pieces)
        tokens = _usage(line, inner)
        if tokens is None:
            self.estimated += 1
            tokens = max(1, round(whole / CHARS_PER_TOKEN))
        user = _named(_USERS, line, inner)
        prompt = _cut(at_s, tokens, whole, pieces, _number(_digest(b"", user)) if user else 0)
        return msgspec.structs.replace(prompt, session=_named(_SESSIONS, line, inner))

    def _message(self, number: int, message: object) -> tuple[str, str]:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise self._bad(
                number, "a message without a role", "each of messages is an object with role"
            )
        role, content = message["role"], message.get("content")
        if not isinstance(content, str):
            content = json.dumps(content, ensure_ascii=False)
        calls = message.get("tool_calls")
        extra = json.dumps(calls, ensure_ascii=False) if calls else ""
        return role, f"{role}\n{content}{extra}\n"

    def _time(self, number: int, line: dict[str, Any], inner: dict[str, Any]) -> float:
        for of in (line, inner):
            for key in _TIMES:
                if key in of:
                    return self._seconds(number, key, of[key])
        raise self._bad(
            number,
            "no time",
            "give each line a timestamp: seconds, milliseconds or ISO 8601",
        )

    def _seconds(self, number: int, key: str, value: object) -> float:
        if isinstance(value, str):
            try:
                when = datetime.fromisoformat(value)
            except ValueError:
                try:
                    value = float(value)
                except ValueError:
                    value = None
            else:
                return when.replace(tzinfo=when.tzinfo or UTC).timestamp()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15:
            return value / 1_000 if value > MILLISECONDS_FROM else float(value)
        raise self._bad(
            number, f"{key} is no time", "use seconds, milliseconds or ISO 8601, none negative"
        )

    def _bad(self, number: int, what: str, cure: str) -> ConfigError:
        return ConfigError(f"{self._name} line {number}: {what}; {cure}")


def _cut(at_s: float, tokens: int, whole: int, pieces: list[tuple[str, str]], apart: int) -> Prompt:
    """A prompt in chunks, with the places where an earlier one may have ended.

    ``apart`` changes the names of these places, so that they match those with the same one only.
    """
    text = "".join(piece for _, piece in pieces)
    per_char = tokens / whole
    chain, digest = [], b""
    for start in range(0, whole - CHUNK_CHARS + 1, CHUNK_CHARS):
        digest = _digest(digest, text[start : start + CHUNK_CHARS])
        chain.append(_number(digest))
    if pieces[0][0] == "":
        recognisable = len(chain) >= PROMPT_CHUNKS_MIN
        return Prompt(
            at_s=at_s, tokens=tokens, chain=tuple(chain), chunk_tokens=CHUNK_CHARS * per_char,
            marks=tuple(chunk ^ apart for chunk in chain),
            end=chain[-1] ^ apart if recognisable else None,
        )  # fmt: skip
    marks, covers, digest, chars = [], [], b"", 0
    for place, (_, piece) in enumerate(pieces):
        digest = _digest(digest, piece)
        marks.append(_number(digest) ^ apart)
        chars += len(piece)
        # The turn that ended here was answered by the message that follows.
        answer = pieces[place + 1] if place + 1 < len(pieces) else ("", "")
        answered = len(answer[1]) if answer[0] == "assistant" else 0
        covers.append(int((chars + answered) * per_char))
    return Prompt(
        at_s=at_s, tokens=tokens, chain=tuple(chain), chunk_tokens=CHUNK_CHARS * per_char,
        marks=tuple(marks[:-1]), covers=tuple(covers[:-1]), end=marks[-1],
    )  # fmt: skip


def _digest(before: bytes, text: str) -> bytes:
    return blake2b(before + text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "big")


def _usage(line: dict[str, Any], inner: dict[str, Any]) -> int | None:
    response = line.get("response")
    for of in (line, inner, response if isinstance(response, dict) else {}):
        usage = of.get("usage")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if isinstance(tokens, int) and tokens > 0:
            return tokens
    return None


def _named(keys: tuple[str, ...], *places: dict[str, Any]) -> str:
    """The first of these keys that has a word or a number."""
    for of in places:
        for key in keys:
            value = of.get(key)
            if isinstance(value, str | int) and value != "":
                return str(value)
    return ""
