"""A relay between the two ends of a data plane: it can hold, damage and cut what it carries.

Put it between a source's tcp backend and its targets::

    relay = Relay()
    start_engine("p0", connector=relay.connector_options())
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import threading
import time
from typing import Any, NamedTuple

CONNECT_S = 10.0
JOIN_S = 20.0
RECEIVE_BYTES = 1 << 14
WATCH_MS = 20
"""How soon a held connection notices that its reader has gone."""

PORTS = (12_000, 32_000)
"""Below those that Linux gives to connections: an engine needs a while until it listens."""
PORTS_TRIED_MAX = 100

ANSWERS, REQUESTS = "answers", "requests"
"""The directions: from the source to its target, and back."""

PASS, STALL, DAMAGE, CUT = "pass", "stall", "damage", "cut"


class _Rule(NamedTuple):
    mode: str
    direction: str = ANSWERS
    first: int = 0
    length: int = 0
    every: int = 1
    mask: int = 0


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now, and that no connection is given by chance
    before somebody listens on it."""
    draw = random.SystemRandom()
    for _ in range(PORTS_TRIED_MAX):
        port = draw.randrange(*PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError(f"{PORTS_TRIED_MAX} ports between {PORTS[0]} and {PORTS[1]} are taken")


class Relay:
    """Carries TCP both ways under a rule that may change at any time.

    Bytes are counted on each connection, in each direction, from the last change of the rule.
    """

    def __init__(self, upstream_port: int = 0) -> None:
        """``upstream_port`` is the source's; 0 chooses a free one for it."""
        self.upstream_port = upstream_port or free_port()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        self._changed = threading.Condition()
        self._rule = _Rule(PASS)
        self._version = 0
        self._held = 0
        self._damaged = 0
        self._closed = False
        self._pairs: set[_Pair] = set()
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def connector_options(self) -> dict[str, Any]:
        """What the source's connector needs so that its targets come through this relay.

        It offers tcp alone: on one host they would read its memory past the relay.
        """
        return {
            "backends": ["tcp"],
            "backend_options": {
                "tcp": {"listen_port": self.upstream_port, "advertise": self.address}
            },
        }

    # --- rules ------------------------------------------------------------------------------

    def carry(self) -> None:
        """Let everything through, what was held first."""
        self._set(_Rule(PASS))

    def stall_after(self, count: int) -> None:
        """Hold each connection once ``count`` further bytes have come from the source."""
        self._set(_Rule(STALL, ANSWERS, count))

    def hold_requests(self) -> None:
        """Hold what targets ask: a source sends nothing until it is let through."""
        self._set(_Rule(STALL, REQUESTS, 0))

    def damage(self, first: int, count: int, *, every: int = 1, mask: int = 0xFF) -> None:
        """Flip the bits of ``mask`` in bytes ``first``, ``first + every``, ... from the source.

        ``count`` bytes from ``first`` on are subject to it, on each connection.
        """
        self._set(_Rule(DAMAGE, ANSWERS, first, count, every, mask))

    def cut(self) -> None:
        """End every connection, and refuse new ones until another rule is set."""
        self._set(_Rule(CUT))
        with self._changed:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.end()

    # --- what happened ----------------------------------------------------------------------

    def wait_held(self, connections: int = 1, timeout_s: float = 60.0) -> None:
        """Wait until so many connections have something that is held."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._held >= connections, timeout_s):
                raise TimeoutError(f"the relay holds {self._held} connections, not {connections}")

    @property
    def damaged(self) -> int:
        """How many bytes were changed since the rule was set."""
        with self._changed:
            return self._damaged

    def close(self) -> None:
        """End every connection and join every thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self.cut()
        deadline = time.monotonic() + JOIN_S
        with self._changed:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"{thread.name} of the relay did not end"
        self._listening.close()

    # --- threads ----------------------------------------------------------------------------

    def _set(self, rule: _Rule) -> None:
        with self._changed:
            self._rule = rule
            self._version += 1
            self._damaged = 0
            self._changed.notify_all()

    def _spawn(self, run: Any, *args: Any) -> None:
        thread = threading.Thread(target=run, args=args, name="relay", daemon=True)
        with self._changed:
            self._threads = [one for one in self._threads if one.is_alive() or one.ident is None]
            self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                target, _ = self._listening.accept()
            except OSError:
                return
            with self._changed:
                refused = self._closed or self._rule.mode == CUT
            if refused:
                target.close()
                continue
            try:
                source = socket.create_connection(("127.0.0.1", self.upstream_port), CONNECT_S)
            except OSError:
                target.close()
                continue
            source.settimeout(None)
            pair = _Pair(target, source)
            with self._changed:
                self._pairs.add(pair)
                refused = self._closed or self._rule.mode == CUT
            if refused:
                pair.end()
            self._spawn(self._carry, pair, REQUESTS, target, source)
            self._spawn(self._carry, pair, ANSWERS, source, target)

    def _carry(
        self, pair: _Pair, direction: str, giver: socket.socket, taker: socket.socket
    ) -> None:
        flow = _Flow(direction)
        whole = False
        try:
            while data := giver.recv(RECEIVE_BYTES):
                while data:
                    part, data = self._allowed(flow, data)
                    taker.sendall(part)
                    if data and not self._wait_for_change(flow, pair):
                        return
            whole = True
        except OSError:
            return
        finally:
            if whole and direction == ANSWERS:
                with contextlib.suppress(OSError):
                    taker.shutdown(socket.SHUT_WR)
            else:
                pair.end()
            with self._changed:
                pair.left -= 1
                if pair.left == 0:
                    self._pairs.discard(pair)
                    pair.close()

    def _allowed(self, flow: _Flow, data: bytes) -> tuple[bytes, bytes]:
        """What may go on now, as it goes on, and what is held."""
        with self._changed:
            if flow.version != self._version:
                flow.version, flow.carried = self._version, 0
            rule = self._rule
            if rule.mode == STALL and rule.direction == flow.direction:
                room = max(0, rule.first - flow.carried)
                part, rest = data[:room], data[room:]
            elif rule.mode == DAMAGE and rule.direction == flow.direction:
                part, rest = self._damage(rule, flow.carried, data), b""
            else:
                part, rest = data, b""
            flow.carried += len(part)
            return part, rest

    def _damage(self, rule: _Rule, at: int, data: bytes) -> bytes:
        changed = bytearray(data)
        last = min(rule.first + rule.length, at + len(data))
        start = rule.first
        if at > start:
            start += -(-(at - start) // rule.every) * rule.every
        for place in range(start, last, rule.every):
            changed[place - at] ^= rule.mask
            self._damaged += 1
        return bytes(changed)

    def _wait_for_change(self, flow: _Flow, pair: _Pair) -> bool:
        """Hold until the rule changes; False when one of the two ends has gone meanwhile."""
        with self._changed:
            self._held += 1
            self._changed.notify_all()
            try:
                while flow.version == self._version and not self._closed:
                    if pair.target_gone():
                        return False
                    self._changed.wait(WATCH_MS / 1000)
                return self._rule.mode != CUT
            finally:
                self._held -= 1


class _Flow:
    """One direction of one connection."""

    def __init__(self, direction: str) -> None:
        self.direction = direction
        self.version = -1
        self.carried = 0


class _Pair:
    """A connection on both sides of the relay."""

    def __init__(self, target: socket.socket, source: socket.socket) -> None:
        self.left = 2
        self._target = target
        self._source = source
        for one in (target, source):
            # Else a short last piece waits 40 ms for the taker's delayed acknowledgement.
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poll = select.poll()
        self._poll.register(target, select.POLLRDHUP)

    def target_gone(self) -> bool:
        return bool(self._poll.poll(0))

    def end(self) -> None:
        for one in (self._target, self._source):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._target.close()
        self._source.close()
