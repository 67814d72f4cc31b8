"""The peer client: asks other nodes to pin, renew, settle and abort."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections import OrderedDict

from kvferry.errors import CodecError, PeerRefused, PeerUnreachable
from kvferry.node.peers.client_open import OpenTransfers
from kvferry.node.peers.client_session import ClientSession, SessionBroken
from kvferry.node.peers.frames import FrameSocket
from kvferry.node.peers.session import PeerIdentity, greet
from kvferry.node.peers.silence import Silence
from kvferry.node.peers.wire import AnyFrame, Live, Pin, Refused

log = logging.getLogger("kvferry.peer_client")


class _Peer:
    """What the client keeps of one address."""

    def __init__(self) -> None:
        self.connecting = threading.Lock()
        self.session: ClientSession | None = None
        self.met = False
        self.open = OpenTransfers()
        self.silence = Silence()
        self.calls = 0


class PeerClient:
    """Calls to any number of peers from any number of threads.

    Each address has one session, opened at the first call, shared by all threads and opened
    again when it broke. After that the source is told first which transfers live, so that it
    ends the others. Each process of a node has a client of its own.
    """

    def __init__(
        self,
        key: bytes,
        identity: PeerIdentity,
        *,
        connect_s: float = 3.0,
        peers_max: int = 256,
    ) -> None:
        self._key = key
        self._identity = identity
        self._name = secrets.token_hex(8)
        self._connect_s = connect_s
        self._peers_max = peers_max
        self._lock = threading.Lock()
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._closed = False

    def call(
        self, address: str, frame: AnyFrame, *, timeout_s: float, incarnation: str = ""
    ) -> AnyFrame:
        """Send a request to ``host:port`` and return its answer.

        It takes ``timeout_s`` at most, whatever the peer does. A broken session is replaced once,
        for every request may be repeated. A pin is not sent to a peer that has just left another
        one unanswered.

        Raises:
            PeerRefused: the peer said no, or lives as another incarnation than asked for.
            PeerUnreachable: no connection, or no answer in time.
        """
        began_s = time.monotonic()
        peer = self._enter(address)
        try:
            if isinstance(frame, Pin) and not peer.silence.may_ask(began_s):
                raise PeerUnreachable(f"{address} did not answer a moment ago")
            peer.open.before(frame)
            answer = self._ask(peer, address, frame, began_s + timeout_s, incarnation)
        except PeerRefused:
            peer.open.forget_refused(frame)
            raise
        except PeerUnreachable:
            now_s = time.monotonic()
            peer.silence.unanswered(now_s - began_s, now_s)
            raise
        finally:
            self._leave(peer)
        if isinstance(answer, Refused):
            peer.open.forget_refused(frame)
            raise PeerRefused(answer.reason, answer.detail)
        peer.open.after(frame)
        return answer

    def close(self) -> None:
        """End every session and join every thread; calls under way end as unreachable."""
        with self._lock:
            self._closed = True
            peers = list(self._peers.values())
            self._peers.clear()
        for peer in peers:
            # A thread that connects at this moment sees the flag afterwards and closes its own.
            session = peer.session
            if session is not None:
                session.close()

    def _enter(self, address: str) -> _Peer:
        """The peer at the address, which is kept at least until :meth:`_leave`."""
        dropped: _Peer | None = None
        with self._lock:
            if self._closed:
                raise PeerUnreachable("the peer client is closed")
            peer = self._peers.get(address)
            if peer is None:
                if len(self._peers) >= self._peers_max:
                    dropped = self._drop_idle()
                peer = self._peers[address] = _Peer()
            self._peers.move_to_end(address)
            peer.calls += 1
        if dropped is not None and dropped.session is not None:
            dropped.session.close()
        return peer

    def _leave(self, peer: _Peer) -> None:
        with self._lock:
            peer.calls -= 1

    def _drop_idle(self) -> _Peer:
        """Make room: the peer that was idle the longest."""
        for address, peer in self._peers.items():
            if peer.calls == 0:
                return self._peers.pop(address)
        raise PeerUnreachable(f"calls to {self._peers_max} peers are under way already")

    def _ask(
        self, peer: _Peer, address: str, frame: AnyFrame, deadline_s: float, incarnation: str
    ) -> AnyFrame:
        for attempt in (1, 2):
            session = self._session(peer, address, deadline_s)
            lives = session.peer.incarnation
            if incarnation and lives != incarnation:
                raise PeerRefused("incarnation", f"{address} lives as {lives}, not {incarnation}")
            try:
                return session.request(frame, deadline_s)
            except SessionBroken as error:
                if attempt == 2:
                    raise
                log.debug("%s: asking again on a new session: %s", address, error)
            except CodecError as error:
                raise PeerRefused("protocol", str(error)) from error
        raise AssertionError("unreachable")

    def _session(self, peer: _Peer, address: str, deadline_s: float) -> ClientSession:
        session = peer.session
        if session is not None and session.alive:
            return session
        if not peer.connecting.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            raise PeerUnreachable(f"{address}: still connecting")
        try:
            session = peer.session
            if session is not None:
                if session.alive:
                    return session
                session.close()
            peer.session = session = self._connect(peer, address, deadline_s)
            if self._closed:
                session.close()
                raise PeerUnreachable("the peer client is closed")
            return session
        finally:
            peer.connecting.release()

    def _connect(self, peer: _Peer, address: str, deadline_s: float) -> ClientSession:
        host, port = split_address(address)
        left_s = min(deadline_s - time.monotonic(), self._connect_s)
        if left_s <= 0:
            raise PeerUnreachable(f"{address}: no time left to connect")
        try:
            sock = socket.create_connection((host, port), timeout=left_s)
        except OSError as error:
            raise PeerUnreachable(f"{address} cannot be reached: {error}") from error
        stream = FrameSocket(sock)
        try:
            left_s = min(deadline_s - time.monotonic(), self._connect_s)
            challenge = greet(stream, self._key, self._identity, self._name, left_s)
        except CodecError as error:
            stream.close()
            raise PeerUnreachable(f"{address} does not speak our protocol: {error}") from error
        except BaseException:
            stream.close()
            raise
        peer.silence.answered()
        session = ClientSession(stream, challenge, peer.silence.answered)
        if peer.met:
            self._tell_live(peer, session, deadline_s)
        peer.met = True
        return session

    def _tell_live(self, peer: _Peer, session: ClientSession, deadline_s: float) -> None:
        """First of all on a new session, so that no pin can come before it and be ended by it."""
        try:
            session.request(Live(transfers=peer.open.living()), deadline_s)
        except (PeerUnreachable, CodecError):
            session.close()
            raise


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` as host and port.

    Raises:
        PeerUnreachable: it is neither.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit():
        raise PeerUnreachable(f"{address!r} is not host:port")
    if not 0 < int(port) < 65536:
        raise PeerUnreachable(f"{address!r} has no valid port")
    return host.removeprefix("[").removesuffix("]"), int(port)
