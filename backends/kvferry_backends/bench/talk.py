"""The control conversation of two ends: who may hold it, and its messages.

Each side proves with an HMAC over both nonces that it holds the key. After that the measuring
side asks and the other one answers, message by message: four bytes of length, then msgpack.
Points in time are of ``time.monotonic()``.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
import time
from typing import Any

import msgspec

from kvferry.errors import BackendError, ConfigError
from kvferry_backends.bench.messages import (
    PROTOCOL,
    Answer,
    Asked,
    Done,
    Failure,
    Measure,
    Measured,
    Open,
    Opened,
    Shut,
)
from kvferry_backends.tcp.options import split_address
from kvferry_backends.tcp.stream import Stream, StreamError

CONNECT_S = 5.0
GREETING_S = 5.0
ANSWER_S = 300.0
"""Longest that one question is worked on: pools of many blocks take a while to fill."""
MESSAGE_BYTES_MAX = 16 * 1024 * 1024

_NONCE_BYTES = 32
_HELLO = struct.Struct(f"<8sI{_NONCE_BYTES}s")
_MAGIC = b"kvfbench"
_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()
_ASKED: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Asked)
_ANSWER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Answer)


class Talk:
    """One end of a conversation that has begun."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def send(self, message: Asked | Answer, deadline: float) -> None:
        """Say something; raises :class:`StreamError`."""
        body = _ENCODER.encode(message)
        self.stream.send([memoryview(_LENGTH.pack(len(body)) + body)], deadline)

    def asked(self, deadline: float) -> Asked:
        """The next question; raises :class:`StreamError`, or BackendError for nonsense."""
        found: Asked = self._next(_ASKED, deadline)
        return found

    def answered(self, deadline: float) -> Answer:
        """The next answer; raises as :meth:`asked` does."""
        found: Answer = self._next(_ANSWER, deadline)
        return found

    def close(self) -> None:
        """Give the connection back."""
        self.stream.close()

    def _next(self, decoder: msgspec.msgpack.Decoder[Any], deadline: float) -> Any:
        length = _LENGTH.unpack(_take(self.stream, _LENGTH.size, deadline))[0]
        if length > MESSAGE_BYTES_MAX:
            raise BackendError(f"a message of {length} bytes, more than {MESSAGE_BYTES_MAX}")
        try:
            return decoder.decode(_take(self.stream, length, deadline))
        except msgspec.MsgspecError as error:
            raise BackendError(f"the other end says what we do not understand: {error}") from error


class Remote:
    """The other end, as the measuring process sees it: the same calls as an :class:`End`."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    def open(self, asked: Open) -> Opened:
        """As :meth:`End.open`."""
        answer = self._ask(asked)
        assert isinstance(answer, Opened)
        return answer

    def measure(self, asked: Measure) -> Measured:
        """As :meth:`End.measure`."""
        answer = self._ask(asked)
        assert isinstance(answer, Measured)
        return answer

    def shut(self) -> None:
        """As :meth:`End.shut`."""
        self._ask(Shut())

    def close(self) -> None:
        """End the conversation; the other end shuts."""
        self._talk.close()

    def _ask(self, asked: Asked) -> Answer:
        deadline = time.monotonic() + ANSWER_S
        try:
            self._talk.send(asked, deadline)
            answer = self._talk.answered(deadline)
        except StreamError as error:
            raise LinkLost(f"the other end is lost: {error}") from error
        if isinstance(answer, Failure):
            raise ConfigError(answer.text) if answer.config else BackendError(answer.text)
        expected = {Open: Opened, Measure: Measured, Shut: Done}[type(asked)]
        if not isinstance(answer, expected):
            raise LinkLost(f"the other end answers {type(answer).__name__}")
        return answer


class LinkLost(BackendError):
    """The conversation is over: nothing more can be measured."""


def call(address: str, key: bytes) -> Talk:
    """Begin a conversation with the end that waits at ``ip:port``.

    Raises:
        ConfigError: the address is none, or the keys differ.
        LinkLost: nobody is there, or it is no end of ours.
    """
    host, port = split_address(address)
    stream = Stream.unconnected(host)
    try:
        stream.connect(host, port, time.monotonic() + CONNECT_S)
        deadline = time.monotonic() + GREETING_S
        mine = secrets.token_bytes(_NONCE_BYTES)
        stream.send([memoryview(_HELLO.pack(_MAGIC, PROTOCOL, mine))], deadline)
        theirs = _hello(stream, deadline)
        proof = _take(stream, hashlib.sha256().digest_size, deadline)
        if not hmac.compare_digest(proof, _proof(key, b"serves", mine, theirs)):
            raise ConfigError(
                f"the end at {address} has another key; give both the same with --key or "
                "KVFERRY_KEY_FILE"
            )
        stream.send([memoryview(_proof(key, b"calls", theirs, mine))], deadline)
    except StreamError as error:
        stream.close()
        raise LinkLost(f"{address}: {error}; start `kvferry bench link --serve` there") from error
    except BaseException:
        stream.close()
        raise
    return Talk(stream)


def admit(stream: Stream, key: bytes) -> Talk:
    """Begin a conversation with whoever connected, if it holds the key.

    Raises:
        BackendError: it does not, or speaks otherwise.
    """
    deadline = time.monotonic() + GREETING_S
    theirs = _hello(stream, deadline)
    mine = secrets.token_bytes(_NONCE_BYTES)
    answer = _HELLO.pack(_MAGIC, PROTOCOL, mine) + _proof(key, b"serves", theirs, mine)
    stream.send([memoryview(answer)], deadline)
    proof = _take(stream, hashlib.sha256().digest_size, deadline)
    if not hmac.compare_digest(proof, _proof(key, b"calls", mine, theirs)):
        raise BackendError("it has another key; give both ends the same")
    return Talk(stream)


def _hello(stream: Stream, deadline: float) -> bytes:
    magic, protocol, nonce = _HELLO.unpack(_take(stream, _HELLO.size, deadline))
    if magic != _MAGIC or protocol != PROTOCOL:
        raise LinkLost(f"the other end is no `kvferry bench link` of protocol {PROTOCOL}")
    return bytes(nonce)


def _proof(key: bytes, side: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(key, b"kvferry bench link\0" + side + first + second, hashlib.sha256)


def _take(stream: Stream, count: int, deadline: float) -> bytes:
    data = bytearray(count)
    if count:
        stream.receive([memoryview(data)], deadline)
    return bytes(data)
