"""One nats-server, or three that keep each stream three times."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from tests.chaos.processes import Process, wait_until
from tests.unit.node_agent.support import free_port

from kvferry.ledger.server_process import find_binary, health
from kvferry.ports.log import FACTS_STREAM

HOST = "127.0.0.1"


class NatsServer:
    """A nats-server that keeps its ports over restarts."""

    def __init__(self, folder: Path, name: str, *, host: str = HOST) -> None:
        self.name = name
        self.host = host
        self.port = free_port()
        self.monitor = free_port()
        self.route = free_port()
        self._folder = folder / name
        self._folder.mkdir()
        self.process: Process | None = None

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    def start(self, peers: tuple[NatsServer, ...] = ()) -> None:
        """Start it, in a cluster with ``peers`` where there are any."""
        config: dict[str, Any] = {
            "server_name": self.name,
            "host": self.host,
            "port": self.port,
            "http": f"{HOST}:{self.monitor}",
            "jetstream": {
                "store_dir": str(self._folder),
                "max_file_store": 8 * 1024**3,
                "max_memory_store": 64 * 1024**2,
                "sync_interval": "1s",
            },
        }
        if peers:
            routes = [f"nats-route://{HOST}:{one.route}" for one in peers]
            config["cluster"] = {
                "name": "kvferry",
                "host": HOST,
                "port": self.route,
                "routes": routes,
            }
        path = self._folder / "nats-server.conf"
        path.write_text(json.dumps(config))
        log = self._folder / "nats-server.log"
        self.process = Process([find_binary(), "-c", str(path)], log)

    def wait_healthy(self) -> None:
        """Wait until it serves and, in a cluster, is level with the others."""
        wait_until(lambda: health(self.monitor) == "", f"{self.name} is healthy")

    def close(self) -> None:
        if self.process is not None:
            self.process.close()

    def monitored(self, path: str) -> dict[str, Any]:
        """What its monitoring port says."""
        connection = http.client.HTTPConnection(HOST, self.monitor, timeout=5)
        try:
            connection.request("GET", path)
            found: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return found


class NatsCluster:
    """``count`` servers that are started together; one is a plain server.

    Use as a context manager.
    """

    def __init__(self, folder: Path, count: int, *, host: str = HOST) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.servers = tuple(NatsServer(folder, f"nats-{n}", host=host) for n in range(count))

    @property
    def url(self) -> str:
        return ",".join(one.url for one in self.servers)

    def url_from(self, first: int) -> str:
        """All of them, that one first: clients take the first that answers."""
        count = len(self.servers)
        return ",".join(self.servers[(first + n) % count].url for n in range(count))

    def __enter__(self) -> NatsCluster:
        try:
            for one in self.servers:
                self.start(one)
            for one in self.servers:
                one.wait_healthy()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for one in self.servers:
            one.close()

    def start(self, server: NatsServer) -> None:
        """Start one of the servers, again after it was killed."""
        server.start(self.servers if len(self.servers) > 1 else ())

    def leader(self) -> NatsServer:
        """Who leads the facts stream now."""
        found: list[NatsServer] = []

        def known() -> bool:
            for asked in self.servers:
                if asked.process is None or not asked.process.running:
                    continue
                name = _leader_of(asked.monitored("/jsz?streams=true"), FACTS_STREAM)
                found[:] = [one for one in self.servers if one.name == name]
                if found:
                    return True
            return False

        wait_until(known, "the facts stream has a leader")
        return found[0]


def _leader_of(jsz: dict[str, Any], stream: str) -> str:
    for account in jsz.get("account_details", ()):
        for one in account.get("stream_detail", ()):
            if one["name"] == stream:
                return str(one.get("cluster", {}).get("leader", ""))
    return ""
