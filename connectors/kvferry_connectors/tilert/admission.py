"""Asks a decode node to take one request's KV from one sender rank.

The node's hello is checked in full before anything is asked: what it says of its model, its senders
and its transport cannot be put right by asking again. ``busy`` and ``cancelling`` can, within the
admission window.
"""

from __future__ import annotations

import socket
import threading
import time

import msgspec

from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.layout import Shape
from kvferry_connectors.tilert.wire import (
    MAGIC,
    PROTOCOL_VERSION,
    TRANSIENT,
    Admit,
    Answer,
    Hello,
    receive,
    send,
)

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 0.8


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of which node."""

    host: str
    port: int
    rid: str
    shape: Shape
    transport: str
    senders: int
    last_prompt_token: int
    sampling: dict[str, object] | None = None
    prompt_token_ids: tuple[int, ...] = ()
    """Only where the node needs them, for a repetition penalty."""
    timeout_s: float
    """For the connection and for each answer."""
    window_s: float
    """How long a busy node is asked again."""


class Admitted(msgspec.Struct, frozen=True):
    """The node waits for this rank's ``done``, on this connection."""

    connection: socket.socket
    rank: int
    generation: int
    hello: Hello


def admit(wanted: Wanted, rank: int, stop: threading.Event) -> Admitted:
    """Ask until the node accepts, refuses for good, or the window is over.

    Raises:
        SendRefused: why not; ``cancelled`` where ``stop`` was set.
    """
    deadline = time.monotonic() + wanted.window_s
    backoff = BACKOFF_FIRST_S
    while True:
        try:
            return _ask(wanted, rank)
        except SendRefused as refused:
            left = deadline - time.monotonic()
            if refused.reason not in TRANSIENT or left <= 0:
                raise
        if stop.wait(min(backoff, left)):
            raise SendRefused("cancelled")
        backoff = min(2 * backoff, BACKOFF_MAX_S)


def check(hello: Hello, wanted: Wanted) -> None:
    """Whether the node is one that this request can be sent to.

    Raises:
        SendRefused: naming what differs, with both values and the cure.
    """
    if hello.magic != MAGIC:
        raise SendRefused("wrong_magic", f"it introduces itself as {hello.magic[:40]!r}")
    if hello.protocol_version != PROTOCOL_VERSION:
        raise SendRefused(
            "protocol_version",
            f"the decode node speaks version {hello.protocol_version}, we {PROTOCOL_VERSION}",
        )
    if hello.transport != wanted.transport:
        raise SendRefused(
            "transport",
            f"the decode node moves bytes by {hello.transport!r}, we by {wanted.transport!r}; "
            f"start it with --transport {wanted.transport}",
        )
    profile, form = wanted.shape.profile, wanted.shape.form
    version = profile.layout_version(form)
    if hello.layout_version != version:
        raise SendRefused(
            "layout_version",
            f"the decode node has {hello.layout_version}, {profile.name} with {form.name} has "
            f"{version}; both sides must serve the same model with the same KV cache dtype",
        )
    if hello.senders != wanted.senders:
        raise SendRefused(
            "sender_count",
            f"the decode node waits for {hello.senders} senders, we are {wanted.senders}; set the "
            "option senders to the node's TILERT_PD_SENDERS",
        )
    if wanted.shape.tokens > hello.max_seq_len:
        raise SendRefused(
            "sequence_too_long",
            f"the prompt has {wanted.shape.tokens} tokens, the decode node takes "
            f"{hello.max_seq_len}",
        )


def _ask(wanted: Wanted, rank: int) -> Admitted:
    """Once."""
    where = f"{wanted.host}:{wanted.port}"
    try:
        connection = socket.create_connection((wanted.host, wanted.port), wanted.timeout_s)
    except TimeoutError as error:
        raise SendRefused("timeout", f"{where} does not accept a connection") from error
    except OSError as error:
        raise SendRefused("unreachable", f"{where}: {error}") from error
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = receive(connection, Hello)
        check(hello, wanted)
        send(connection, _request(wanted, rank))
        answer = receive(connection, Answer)
        if not answer.accepted:
            raise _rejected(answer)
        if (answer.rid, answer.rank) != (wanted.rid, rank) or answer.generation < 0:
            raise SendRefused("bad_frame", f"the decode node accepted something else: {answer}")
        return Admitted(connection, rank, answer.generation, hello)
    except BaseException:
        connection.close()
        raise


def _request(wanted: Wanted, rank: int) -> Admit:
    return Admit(
        rid=wanted.rid,
        rank=rank,
        seq_len=wanted.shape.tokens,
        last_prompt_token=wanted.last_prompt_token,
        admission_window_s=wanted.window_s,
        sampling=wanted.sampling,
        prompt_token_ids=wanted.prompt_token_ids if rank == 0 else (),
    )


def _rejected(answer: Answer) -> SendRefused:
    said = answer.error
    if said == "busy":
        return SendRefused("busy", f"with {answer.busy_rid!r}, {answer.busy_state}")
    if said in ("cancelling", "duplicate_rank"):
        return SendRefused(said)
    if said.startswith("seq_len"):
        return SendRefused("sequence_too_long", said)
    return SendRefused("not_admitted", said[:200])
