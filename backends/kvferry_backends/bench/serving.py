"""The end that is asked: waits for a measuring process and does what it says."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable

from kvferry.errors import BackendError, ConfigError
from kvferry_backends.bench.end import End
from kvferry_backends.bench.messages import Answer, Asked, Done, Failure, Measure, Open
from kvferry_backends.bench.talk import ANSWER_S, Talk, admit
from kvferry_backends.tcp.options import join_address, split_address
from kvferry_backends.tcp.stream import Stream, StreamError

_log = logging.getLogger("kvferry.bench")

IDLE_S = 300.0
"""A measuring process that asks nothing for so long is given up."""


class Waiting:
    """Listens for measuring processes and serves one after the other."""

    def __init__(self, address: str, key: bytes, device: int, listen_host: str = "") -> None:
        """Listen at once.

        ``listen_host`` is where the other end reaches the backends; empty for the address at
        which the measuring process reached us.

        Raises:
            ConfigError: ``address`` is not ``ip:port`` (port 0 takes a free one), or not ours.
        """
        host, colon, port = address.rpartition(":")
        wanted = 0
        if port != "0" or not colon:
            host, wanted = split_address(address)
        host = host.removeprefix("[").removesuffix("]")
        self._host, self._key = host, key
        self._device, self._listen_host = device, listen_host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listening = socket.create_server((host, wanted), family=family)
        except OSError as error:
            raise ConfigError(f"cannot listen at {address}: {error}") from error

    @property
    def address(self) -> str:
        """``ip:port`` where this end waits."""
        return join_address(self._host, self._listening.getsockname()[1])

    def serve_one(self, met: Callable[[str], None] = lambda peer: None) -> None:
        """Wait for a measuring process, and serve it until it is done or gone.

        Whoever does not hold the key is turned away, with a word in the log. ``met`` hears the
        address of one that does.
        """
        sock, peer = self._listening.accept()
        name = join_address(peer[0], peer[1])
        listen_host = self._listen_host or sock.getsockname()[0]
        end = End(self._key, listen_host=listen_host, device=self._device)
        stream = Stream(sock)
        try:
            talk = admit(stream, self._key)
            met(name)
            self._serve(talk, end)
        except StreamError as error:
            _log.info("%s: the conversation ended: %s", name, error)
        except BackendError as error:
            _log.warning("%s was turned away: %s", name, error)
        finally:
            end.shut()
            stream.close()

    def close(self) -> None:
        """Listen no longer."""
        self._listening.close()

    def _serve(self, talk: Talk, end: End) -> None:
        while True:
            asked = talk.asked(time.monotonic() + IDLE_S)
            talk.send(answer(end, asked), time.monotonic() + ANSWER_S)


def answer(end: End, asked: Asked) -> Answer:
    """Do what is asked; what goes wrong is an answer too."""
    try:
        if isinstance(asked, Open):
            return end.open(asked)
        if isinstance(asked, Measure):
            return end.measure(asked)
        end.shut()
        return Done()
    except ConfigError as error:
        return Failure(text=str(error), config=True)
    except BackendError as error:
        return Failure(text=str(error))
    except Exception as error:
        _log.exception("%s failed in a way not foreseen", type(asked).__name__)
        return Failure(text=f"{type(error).__name__}: {error}")
