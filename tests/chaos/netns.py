"""A network namespace that can be cut off: what is sent then is lost and nobody is told."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")
CLONE_NEWNET = 0x40000000

MAC = "02:00:00:00:00:{:02x}"
NOBODY = "02:00:00:00:ff:ff"
"""Frames for this address are dropped by whoever gets them."""


class NotPermitted(Exception):
    """Namespaces cannot be made here."""


class Namespace:
    """One namespace, joined to ours by a pair of interfaces. A context manager.

    Args:
        number: 0 to 62, one of its own for each that lives at the same time.

    Raises:
        NotPermitted: on entering.
    """

    def __init__(self, number: int) -> None:
        self.name = f"kvf-{os.getpid()}-{number}"
        self._ends = (f"kvfa{os.getpid() % 100000}{number}", f"kvfb{os.getpid() % 100000}{number}")
        net = f"10.213.{os.getpid() % 250}"
        self.host, self.inside = f"{net}.{4 * number + 1}", f"{net}.{4 * number + 2}"

    @property
    def within(self) -> tuple[str, ...]:
        """What to put before a command."""
        return ("ip", "netns", "exec", self.name)

    def run(self, start: Callable[[], T]) -> T:
        """Call ``start`` on a thread that lives inside: the processes it starts stay there."""
        found: list[T] = []

        def enter() -> None:
            where = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(where, CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(where)
            found.append(start())

        thread = threading.Thread(target=enter, name=self.name)
        thread.start()
        thread.join()
        assert found, f"nothing was started inside {self.name}"
        return found[0]

    def __enter__(self) -> Namespace:
        here, there = self._ends
        try:
            _ip("netns", "add", self.name)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotPermitted(f"no network namespace can be made here: {error}") from error
        try:
            _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", self.name)
            _ip("link", "set", here, "address", MAC.format(1), "up")
            _ip("address", "add", f"{self.host}/30", "dev", here)
            self._inside("link", "set", "lo", "up")
            self._inside("link", "set", there, "address", MAC.format(2), "up")
            self._inside("address", "add", f"{self.inside}/30", "dev", there)
            self._inside("route", "add", "default", "via", self.host)
        except subprocess.CalledProcessError as error:
            self.__exit__(None, None, None)
            raise NotPermitted(f"interfaces cannot be set up here: {error.stderr}") from error
        self.heal()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _ip("netns", "delete", self.name)

    def cut(self) -> None:
        """From now on all that is sent in either direction is lost."""
        self._neighbours(NOBODY, NOBODY)

    def heal(self) -> None:
        """Join it again."""
        self._neighbours(MAC.format(2), MAC.format(1))

    def _neighbours(self, inside: str, host: str) -> None:
        """Where each end believes the other to be: the inside as seen here, and the reverse."""
        here, there = self._ends
        _ip("neigh", "replace", self.inside, "lladdr", inside, "dev", here, "nud", "permanent")
        self._inside(
            "neigh", "replace", self.host, "lladdr", host, "dev", there, "nud", "permanent"
        )

    def _inside(self, *arguments: str) -> None:
        _ip("-n", self.name, *arguments)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)
