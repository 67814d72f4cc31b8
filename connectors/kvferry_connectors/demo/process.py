"""One child process with all its descendants: started, watched, and certainly ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvferry_connectors.demo.errors import DemoError

KILL_S = 10.0
"""For the kernel to end a killed group."""
TRACKERS_S = 3.0
"""For resource trackers to end by themselves."""
TAIL_LINES = 25
POLL_S = 0.05


class Child:
    """A process in a session of its own, so that one signal reaches whatever it started."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        talk: bool = False,
    ) -> None:
        """
        Args:
            log: takes stderr, and stdout too unless ``talk``.
            talk: give us pipes to stdin and from stdout.
        """
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._env = dict(env)
        self._talk = talk
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The started process."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    async def start(self) -> None:
        """Start it; its log is appended to, so that a restart keeps what came before.

        Raises:
            DemoError: the program cannot be run.
        """
        pipe = asyncio.subprocess.PIPE if self._talk else None
        with self.log.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._argv,
                    stdin=pipe or asyncio.subprocess.DEVNULL,
                    stdout=pipe or log,
                    stderr=log,
                    env=self._env,
                    start_new_session=True,
                    limit=1 << 24,
                )
            except OSError as error:
                raise DemoError(f"{self.name} cannot be started: {error}") from error

    def check(self) -> None:
        """
        Raises:
            DemoError: it ended, which nobody asked for; with the end of its log.
        """
        code = self.process.returncode
        if code is not None:
            raise DemoError(f"{self.name} ended with code {code}:\n{self.tail()}", self.log)

    async def wait(self, timeout_s: float) -> int:
        """Its exit code.

        Raises:
            DemoError: it still runs after ``timeout_s``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self.process.wait()
        except TimeoutError:
            raise DemoError(
                f"{self.name} did not end within {timeout_s:.0f} s:\n{self.tail()}", self.log
            ) from None

    async def stop(self, grace_s: float) -> None:
        """Ask it to stop, wait, and kill what is left. Returns when nothing is left."""
        if self._process is None:
            return
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        """End the whole group at once, as a crash would. Returns when nothing is left.

        Python's resource trackers are spared for a moment: they remove the shared memory of the
        dead, which nobody else does, and end by themselves.

        Raises:
            DemoError: the kernel did not end it in time.
        """
        if self._process is None:
            return
        group = self._process.pid
        spare_until = time.monotonic() + TRACKERS_S
        try:
            async with asyncio.timeout(KILL_S):
                # Looked at again and again, for who is being born now escapes one signal.
                while members := group_members(group):
                    for pid in members:
                        if time.monotonic() > spare_until or not is_tracker(pid):
                            with contextlib.suppress(ProcessLookupError):
                                os.kill(pid, signal.SIGKILL)
                    await asyncio.sleep(POLL_S)
                await self._process.wait()
        except TimeoutError:
            raise DemoError(f"{self.name} does not die within {KILL_S:.0f} s") from None

    def tail(self) -> str:
        """The last lines of its log."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError as error:
            return f"(no log: {error})"
        return "\n".join(lines[-TAIL_LINES:])


def group_members(group: int) -> list[int]:
    """Living processes of a process group; a zombie holds nothing any more and does not count."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        # The command's name stands in brackets and may hold blanks: count fields after it.
        state, _, its_group = stat.rpartition(")")[2].split()[:3]
        if int(its_group) == group and state not in ("Z", "X"):
            members.append(int(entry.name))
    return members


def is_tracker(pid: int) -> bool:
    """Whether a process is a resource tracker of Python's multiprocessing, or may become one: who
    is just being started has no command line yet."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return not line or b"multiprocessing.resource_tracker" in line
