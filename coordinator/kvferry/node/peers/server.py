"""The peer server: answers pins on threads of its own, also while the engine sleeps."""

from __future__ import annotations

import logging
import socket
import threading
import time

from kvferry.errors import CodecError, ConfigError, PeerError, PeerUnreachable
from kvferry.node.export.table import ExportTable
from kvferry.node.peers.frames import FrameSocket
from kvferry.node.peers.session import PeerIdentity, admit
from kvferry.node.peers.wire import (
    Abort,
    AnyFrame,
    Done,
    Follow,
    Hello,
    Live,
    Pin,
    Refused,
    Renew,
)

log = logging.getLogger("kvferry.peer_server")

SWEEP_MS = 100
IDLE_S = 600.0
"""A session without a request for so long is closed; the client opens another when it needs it."""
JOIN_S = 10.0
BACKLOG_MAX = 128


class PeerServer:
    """Serves one export table to authenticated nodes of the same space.

    One thread accepts and sweeps the table, and each session has a thread. Beyond
    ``sessions_max`` a connection is refused ``busy``. Whatever a peer sends ends at most its own
    session.
    """

    def __init__(
        self,
        key: bytes,
        identity: PeerIdentity,
        table: ExportTable,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertise: str = "",
        sessions_max: int = 256,
    ) -> None:
        self._key = key
        self._identity = identity
        self._table = table
        self._bind = (host, port)
        self._advertise = advertise
        self._sessions_max = sessions_max
        self._sessions: dict[threading.Thread, FrameSocket] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None

    def start(self) -> None:
        """Listen and serve from now on.

        Raises:
            ConfigError: the address cannot be bound.
        """
        host, port = self._bind
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server(self._bind, family=family, backlog=BACKLOG_MAX)
        except OSError as error:
            raise ConfigError(
                f"the peer server cannot listen on {host}:{port} ({error.strerror or error}); "
                "choose another peer host or port (0 takes a free one)"
            ) from error
        listener.settimeout(SWEEP_MS / 1000)
        self._listener = listener
        self._acceptor = threading.Thread(
            target=self._accept_all, args=(listener,), name="kvferry-peer-accept", daemon=True
        )
        self._acceptor.start()

    @property
    def address(self) -> str:
        """``host:port`` for peers: what ``advertise`` said, else where we listen."""
        if self._advertise:
            return self._advertise
        if self._listener is None:
            raise PeerUnreachable("the peer server does not listen; call start() first")
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def sessions(self) -> int:
        """How many connections are open now."""
        with self._lock:
            return len(self._sessions)

    def close(self) -> None:
        """Stop listening, end every session, join every thread. The table stays as it is."""
        self._closing.set()
        if self._listener is not None:
            _wake(self._listener)
        if self._acceptor is not None:
            self._acceptor.join(JOIN_S)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        with self._lock:
            running = list(self._sessions.items())
        for _, stream in running:
            stream.stop()
        for thread, _ in running:
            thread.join(JOIN_S)
            if thread.is_alive():
                log.error("the peer session %s did not end within %s s", thread.name, JOIN_S)

    def _accept_all(self, listener: socket.socket) -> None:
        sweep_at_s = 0.0
        while not self._closing.is_set():
            now_s = time.monotonic()
            if now_s >= sweep_at_s:
                self._table.sweep()
                sweep_at_s = now_s + SWEEP_MS / 1000
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if self._closing.is_set():
                    return
                # For example out of file descriptors: serve the sessions that stand, try later.
                log.warning("the peer server cannot accept a connection: %s", error)
                self._closing.wait(SWEEP_MS / 1000)
                continue
            self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        try:
            stream = FrameSocket(sock)
        except OSError as error:
            log.debug("a connection ended before it began: %s", error)
            sock.close()
            return
        if not self._spawn(stream):
            self._turn_away(stream)

    def _spawn(self, stream: FrameSocket) -> bool:
        thread = threading.Thread(
            target=self._serve, args=(stream,), name="kvferry-peer-session", daemon=True
        )
        with self._lock:
            if len(self._sessions) >= self._sessions_max:
                log.warning("a peer is refused: %d sessions are open", self._sessions_max)
                return False
            self._sessions[thread] = stream
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("a peer is refused: %s", error)
            with self._lock:
                del self._sessions[thread]
            return False
        return True

    def _turn_away(self, stream: FrameSocket) -> None:
        try:
            stream.send(Refused(reason="busy", detail="too many sessions"), timeout_s=0.1)
        except PeerError as error:
            log.debug("the refused peer was gone: %s", error)
        finally:
            stream.close()

    def _serve(self, stream: FrameSocket) -> None:
        who = "an unknown peer"
        try:
            hello = admit(stream, self._key, self._identity)
            who = f"node {hello.node}"
            self._answer_all(stream, hello)
        except PeerError as error:
            log.debug("the session of %s ended: %s", who, error)
        except CodecError as error:
            log.warning("the session of %s was ended: %s", who, error)
        except Exception:
            log.exception("the session of %s failed", who)
        finally:
            stream.close()
            with self._lock:
                self._sessions.pop(threading.current_thread(), None)

    def _answer_all(self, stream: FrameSocket, hello: Hello) -> None:
        while not self._closing.is_set():
            request = stream.receive(timeout_s=IDLE_S)
            if request is None:
                return
            answer = self._answer(hello, request)
            if answer is None:
                name = type(request).__name__
                stream.send(Refused(reason="protocol", detail=f"{name} is no request"))
                raise CodecError(f"{name} is no request")
            stream.send(answer)

    def _answer(self, hello: Hello, request: AnyFrame) -> AnyFrame | None:
        table, target = self._table, hello.node
        match request:
            case Pin():
                return table.pin(target, request, client=hello.client)
            case Renew():
                return table.renew(target, request)
            case Done():
                return table.done(target, request)
            case Abort():
                return table.abort(target, request)
            case Live():
                return table.live(target, request, client=hello.client)
            case Follow():
                return table.published.follow(request)
            case _:
                return None


def _wake(listener: socket.socket) -> None:
    """End a blocked accept at once instead of at its next timeout."""
    try:
        listener.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("the listening socket could not be shut down: %s", error)
