"""The handshake of a peer session: both sides prove that they hold the cluster key.

Each proof is an HMAC over both nonces and everything that both sides said of themselves, with a
purpose of its own per side, so that no proof can be replayed, mirrored or moved to another
session. After the handshake frames are neither signed nor encrypted: the network between nodes
is trusted not to alter a standing connection.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from typing import TypeVar

import msgspec

from kvferry.errors import CodecError, PeerRefused, PeerUnreachable
from kvferry.node.peers.frames import FrameSocket
from kvferry.node.peers.keys import derive
from kvferry.node.peers.wire import PROTOCOL, AnyFrame, Challenge, Hello, Proof, Refused, Welcome

log = logging.getLogger("kvferry.session")

NONCE_BYTES = 32
HANDSHAKE_S = 5.0
"""An unauthenticated peer is dropped after this time, whatever it sends."""
HANDSHAKE_FRAME_BYTES_MAX = 64 * 1024
COMPONENT_CHARS_MAX = 200

FrameT = TypeVar("FrameT", Hello, Challenge, Proof, Welcome)

_OTHER_KEY = "the cluster keys differ; give both nodes the same key file (KVFERRY_KEY_FILE)"


class PeerIdentity(msgspec.Struct, frozen=True):
    """What a node says of itself when it meets another one."""

    node: str
    space: str
    incarnation: str
    components: dict[str, str] = {}
    """What the space's fingerprint is made of, by name; names what differs in a mismatch."""


def greet(
    stream: FrameSocket, key: bytes, identity: PeerIdentity, client: str, timeout_s: float
) -> Challenge:
    """The client's side: returns who answered, once both sides have proved themselves.

    Raises:
        PeerRefused: the server said no, or failed to prove itself (``bad_key``).
        PeerUnreachable: it went away or did not answer in time.
    """
    deadline_s = time.monotonic() + min(timeout_s, HANDSHAKE_S)
    hello = Hello(
        protocol=PROTOCOL,
        node=identity.node,
        space=identity.space,
        incarnation=identity.incarnation,
        nonce=secrets.token_bytes(NONCE_BYTES),
        components=identity.components,
        client=client,
    )
    _send(stream, hello, deadline_s)
    challenge = _expect(stream, Challenge, deadline_s)
    if not hmac.compare_digest(challenge.proof, _proof(key, "server", hello, challenge)):
        raise PeerRefused("bad_key", _OTHER_KEY)
    _send(stream, Proof(proof=_proof(key, "client", hello, challenge)), deadline_s)
    _expect(stream, Welcome, deadline_s)
    if challenge.space != identity.space:
        raise PeerRefused("space_mismatch", f"{identity.space} here, {challenge.space} there")
    return challenge


def admit(stream: FrameSocket, key: bytes, identity: PeerIdentity) -> Hello:
    """The server's side: returns who came, once both sides have proved themselves.

    A refusal is sent to the peer before it is raised; what differs between two spaces is only
    told to a peer that holds the key.

    Raises:
        PeerRefused: the peer is not one of ours, with the reason it was told.
        PeerUnreachable: it went away or took more than ``HANDSHAKE_S``.
        CodecError: it does not speak the protocol.
    """
    deadline_s = time.monotonic() + HANDSHAKE_S
    hello = _expect(stream, Hello, deadline_s)
    if hello.protocol != PROTOCOL:
        versions = f"{hello.protocol} here, {PROTOCOL} there"
        raise _refuse(stream, hello, deadline_s, "protocol", versions)
    if len(hello.nonce) != NONCE_BYTES:
        raise CodecError(f"a nonce of {len(hello.nonce)} bytes instead of {NONCE_BYTES}")
    draft = Challenge(
        node=identity.node,
        space=identity.space,
        incarnation=identity.incarnation,
        nonce=secrets.token_bytes(NONCE_BYTES),
        proof=b"",
    )
    challenge = msgspec.structs.replace(draft, proof=_proof(key, "server", hello, draft))
    _send(stream, challenge, deadline_s)
    proof = _expect(stream, Proof, deadline_s)
    if not hmac.compare_digest(proof.proof, _proof(key, "client", hello, challenge)):
        raise _refuse(stream, hello, deadline_s, "bad_key", _OTHER_KEY)
    if hello.space != identity.space:
        differing = describe_mismatch(hello, identity)
        raise _refuse(stream, hello, deadline_s, "space_mismatch", differing)
    _send(stream, Welcome(), deadline_s)
    return hello


def describe_mismatch(here: Hello, there: PeerIdentity) -> str:
    """Every component that differs, as the client (``here``) reads it.

    For example ``block_size: 32 here, 64 there; dtype: fp8 here, bfloat16 there``.
    """
    names = sorted(here.components.keys() | there.components.keys())
    parts = [
        f"{name}: {_short(here.components.get(name))} here, "
        f"{_short(there.components.get(name))} there"
        for name in names
        if here.components.get(name) != there.components.get(name)
    ]
    return "; ".join(parts) or f"space: {here.space} here, {there.space} there"


def _short(value: str | None) -> str:
    return "missing" if value is None else value[:COMPONENT_CHARS_MAX]


def _proof(key: bytes, side: str, hello: Hello, challenge: Challenge) -> bytes:
    said = [part for item in sorted(hello.components.items()) for part in item]
    return derive(
        key,
        f"peer-session-{side}",
        str(hello.protocol),
        hello.node,
        hello.space,
        hello.incarnation,
        hello.client,
        hello.nonce.hex(),
        challenge.node,
        challenge.space,
        challenge.incarnation,
        challenge.nonce.hex(),
        *said,
    )


def _refuse(
    stream: FrameSocket, hello: Hello, deadline_s: float, reason: str, detail: str
) -> PeerRefused:
    """Tell the peer; the detail is written as the peer reads it: "here" is its own side."""
    who = hello.node[:COMPONENT_CHARS_MAX]
    log.warning("node %r is refused, and told: %s: %s", who, reason, detail)
    _send(stream, Refused(reason=reason, detail=detail), deadline_s)
    return PeerRefused(reason, detail)


def _send(stream: FrameSocket, frame: AnyFrame, deadline_s: float) -> None:
    stream.send(frame, timeout_s=deadline_s - time.monotonic())


def _expect(stream: FrameSocket, kind: type[FrameT], deadline_s: float) -> FrameT:
    # Waiting for a frame and taking it in share what is left of the time.
    half_s = max(0.0, deadline_s - time.monotonic()) / 2
    frame = stream.receive(timeout_s=half_s, frame_s=half_s, limit=HANDSHAKE_FRAME_BYTES_MAX)
    if frame is None:
        raise PeerUnreachable(f"no {kind.__name__} in time")
    if isinstance(frame, Refused):
        raise PeerRefused(frame.reason, frame.detail)
    if not isinstance(frame, kind):
        raise CodecError(f"{type(frame).__name__} instead of {kind.__name__}")
    return frame
