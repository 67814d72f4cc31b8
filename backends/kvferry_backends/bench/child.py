"""Ends in processes of their own: made, waited for, and never left behind.

The process that asks holds no pool and loads no backend, so that nothing of it stands beside what
is measured, and Ctrl-C finds it ready to end the others.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading

from kvferry_backends.bench.serving import Waiting
from kvferry_backends.bench.talk import LinkLost

START_S = 30.0
END_S = 10.0
EXIT_S = 1.0
"""How long a child may take to end once its parent is gone."""


class Child:
    """A process of this machine that is an end, and serves this one over loopback.

    Attributes:
        address: ``ip:port`` where it waits to be told what to do.
    """

    def __init__(self, key: bytes, *, device: int, listen_host: str) -> None:
        """Start it; ``listen_host`` is where the other end reaches it.

        Raises:
            LinkLost: it does not come up.
        """
        # A session of its own: Ctrl-C is for us, and we end the child.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvferry_backends.bench.child", str(device), listen_host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self.address = self._meet(key)
        except BaseException:
            self.close()
            raise

    def _meet(self, key: bytes) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(key.hex().encode() + b"\n")
            stdin.flush()
        except OSError as error:
            raise LinkLost(f"a process of the measurement ended at once: {error}") from error
        ready, _, _ = select.select([stdout], [], [], START_S)
        address = stdout.readline().decode().strip() if ready else ""
        if not address:
            raise LinkLost(f"a process of the measurement said nothing within {START_S:g} s")
        return address

    def close(self) -> None:
        """End it: politely, then by force."""
        process = self._process
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_S)
        if process.stdout is not None:
            process.stdout.close()


def _end_with_parent() -> None:
    """Wait until the parent has closed its end of the pipe; then the conversation ends too, and
    the main thread with it, or by force."""
    # Not through sys.stdin: its lock must be free when the interpreter ends.
    while os.read(0, 4096):
        continue
    threading.Event().wait(EXIT_S)
    os._exit(1)


def main() -> None:
    """Serve the parent once."""
    key = bytes.fromhex(os.read(0, 4096).decode())
    device, listen_host = int(sys.argv[1]), sys.argv[2]
    waiting = Waiting("127.0.0.1:0", key, device, listen_host)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with contextlib.suppress(BrokenPipeError):  # The parent has gone already.
            os.write(1, waiting.address.encode() + b"\n")
            waiting.serve_one()
    finally:
        waiting.close()
        sys.stderr.flush()
        # All of ours is closed. Some transports' libraries crash in their own exit handlers.
        os._exit(0)


if __name__ == "__main__":
    main()
