"""Requests of a vLLM server's own log, as ``--enable-log-requests`` writes it.

Token ids are compared, so it is exact. vLLM logs them at the level DEBUG: ``Request ID details:
prompt: '...', prompt_token_ids: [1, 2], ...``; older versions at INFO: ``Received request ID:
prompt: '...', params: ..., prompt_token_ids: [1, 2], ...``. Lines may be JSON with ``message`` and
``asctime``, as ``VLLM_LOGGING_CONFIG_PATH`` or a collector of logs may have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

import msgspec

from kvferry.errors import ConfigError
from kvferry.replay.advise.prompts import Prompt

MARK_TOKENS = 16
"""Where an earlier prompt ended is known to so many tokens."""
MARKS_PER_CHUNK = 4
CHUNK_TOKENS = MARK_TOKENS * MARKS_PER_CHUNK
PROMPT_MARKS_MIN = 4
"""A prompt is recognised as the beginning of a later one from so many marks on."""
LINES_MAX = 1_000_000
NO_YEAR = 2000
"""vLLM's own format has none; a leap year, so that every day is one."""
NEW_YEAR = timedelta(days=180)
"""Times that go back by so much have come to another year."""
CURE = (
    "start vLLM with --enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG, and without "
    "--max-log-len, so that it logs the token ids of prompts"
)
ASSUMED = (
    "prompts are compared by their token ids, as vLLM logged them; requests with another LoRA or "
    "cache_salt are not told apart"
)
_REQUEST = re.compile(rb"(?:Request|Received request) \S+?(?: details)?: prompt: ")
_TOKENS = b"prompt_token_ids: ["
_IDS = re.compile(rb"\d+(?:, ?\d+)*")
_TIME = re.compile(rb"(?<!\d)(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")


class VllmLog:
    """Reads such a log, line by line; lines that tell of no prompt are passed over.

    Args:
        name: the option and the file, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._decoder = msgspec.json.Decoder(_JsonLine)
        self._before: datetime | None = None
        self._years = 0

    def prompts(self, file: Iterable[bytes]) -> Iterator[Prompt]:
        """The requests.

        Raises:
            ConfigError: there is none, or one without a time; names the line and the cure.
        """
        found = 0
        for number, raw in enumerate(file, start=1):
            when, message = self._parts(raw)
            ids = _ids(message)
            if ids is None:
                continue
            at_s = self._time(number, when)
            yield _prompt(at_s, ids)
            found += 1
            if found == LINES_MAX:
                break
        if not found:
            raise ConfigError(
                f"{self._name} holds no requests: give JSON lines with messages or prompt, a "
                f"Mooncake trace, or the log of a vLLM server. Of vLLM: {CURE}"
            )

    def _parts(self, raw: bytes) -> tuple[bytes, bytes]:
        """Where a line's time stands, and its message."""
        if raw.lstrip().startswith(b"{"):
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                line = self._decoder.decode(raw)
                return (line.asctime or line.timestamp).encode(), line.message.encode()
        begins = _REQUEST.search(raw)
        return (raw[: begins.start()], raw[begins.start() :]) if begins else (b"", raw)

    def _time(self, number: int, text: bytes) -> float:
        """Seconds; never before those of the line before, for workers write side by side."""
        found = _TIME.search(text)
        if found is None:
            raise ConfigError(
                f"{self._name} line {number}: a request without a time; give lines as vLLM writes "
                "them, with month, day and time"
            )
        year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
        micro = int((found[7] or b"0").ljust(6, b"0"))
        try:
            when = datetime(
                (year or NO_YEAR) + self._years, month, day, hour, minute, second, micro, UTC
            )
        except ValueError as error:
            raise ConfigError(f"{self._name} line {number}: no time: {error}") from error
        if self._before is not None and when < self._before:
            if not year and self._before - when > NEW_YEAR:
                self._years += 1
                return self._time(number, text)
            when = self._before
        self._before = when
        return when.timestamp()


class _JsonLine(msgspec.Struct):
    message: str
    asctime: str = ""
    timestamp: str = ""


def is_vllm_line(first: object) -> bool:
    """Whether a log's first JSON line is one of vLLM's, and no request by itself."""
    return isinstance(first, dict) and isinstance(first.get("message"), str)


def _ids(message: bytes) -> list[bytes] | None:
    """The prompt's token ids as text; None if the line tells of no prompt.

    The last place counts: the text of the prompt, which comes before, may say anything.
    """
    if not _REQUEST.match(message):
        return None
    begins = message.rfind(_TOKENS)
    found = _IDS.match(message, begins + len(_TOKENS)) if begins >= 0 else None
    return found[0].replace(b" ", b"").split(b",") if found else None


def _prompt(at_s: float, ids: list[bytes]) -> Prompt:
    marks: list[int] = []
    digest = b""
    # The last token is computed in any case.
    for start in range(0, len(ids) - MARK_TOKENS, MARK_TOKENS):
        text = b",".join(ids[start : start + MARK_TOKENS])
        digest = blake2b(digest + text, digest_size=8).digest()
        marks.append(int.from_bytes(digest, "big"))
    return Prompt(
        at_s=at_s,
        tokens=len(ids),
        chain=tuple(marks[MARKS_PER_CHUNK - 1 :: MARKS_PER_CHUNK]),
        chunk_tokens=CHUNK_TOKENS,
        marks=tuple(marks),
        end=marks[-1] if len(marks) >= PROMPT_MARKS_MIN else None,
    )
