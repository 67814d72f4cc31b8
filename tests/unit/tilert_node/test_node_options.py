"""A node's data planes have the connector's options, and a wrong one is named before it serves."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from tests.tilert.returning import Peer
from tests.unit.backends.test_tcp_tls import files
from tests.unit.tilert_node.origins import KEY, PAGES, ROOT, make
from tests.unit.tilert_node.test_node_tier import chain

from kvferry.core.events import NodeJoined
from kvferry.node.export.table import ExportTable
from kvferry.node.outbox.outbox import Outbox
from kvferry_backends.tcp.options import TcpOptions
from kvferry_connectors.tilert.node import cli
from kvferry_connectors.tilert.node.member import Member
from kvferry_connectors.tilert.node.settings import NodeOptions
from kvferry_connectors.vllm.book import Book
from kvferry_connectors.vllm.neighbours import SpaceFacts

LEAST = ("--node", "t0", "--host-tier-bytes", "1000000", "--key", "hex:" + KEY.hex())
TLS = [f"tcp.{name}={value}" for name, value in files().items()]


def assigned(*texts: str) -> list[str]:
    return [part for text in texts for part in ("--backend-options", text)]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[NodeOptions]:
    """What the node would be started with: TileRT's server is left out."""
    seen: list[NodeOptions] = []
    monkeypatch.setattr(cli, "serve", lambda options, engine, rest: seen.append(options))
    return seen


def test_options_are_the_connectors_by_their_names(
    served: list[NodeOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFERRY_NATS_USER", "t0")
    monkeypatch.setenv("KVFERRY_NATS_TLS_CA", files()["tls_ca_file"])
    monkeypatch.setenv("KVFERRY_NATS_INBOX_PREFIX", "_INBOX.t0")
    given = assigned("tcp.connections=3", *TLS)
    assert cli.run([*LEAST, "--host", "127.0.0.2", "--backends", "tcp, nixl", *given]) == 0
    planes = served[0].planes()
    assert (planes.host, planes.backends) == ("127.0.0.2", ("tcp", "nixl"))
    assert planes.backend_options == {"tcp": {"connections": 3, **files()}}
    assert served[0].nats_credentials == {
        "user": "t0",
        "tls_ca_file": files()["tls_ca_file"],
        "inbox_prefix": "_INBOX.t0",
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (assigned("tcp.conections=3"), "tcp backend: unknown option conections; known are"),
        (assigned("tcp.connections=99"), "tcp backend: connections 99 is not 0 to 16"),
        (assigned(TLS[0]), "TLS also needs tls_key_file, tls_ca_file"),
        (assigned("tcp.tls_cert_file=/nowhere", *TLS[1:]), "/nowhere"),
        (assigned("nixl.ring=1"), "there are options for nixl"),
        (assigned("connections=3"), "--backend-options 'connections=3' is not BACKEND.OPTION"),
        (["--backends", "tpc"], "no backend is called 'tpc'"),
        (["--host", "0.0.0.0"], "tcp backend: listen_host 0.0.0.0 means every interface"),
        (["--host", "nowhere.example"], "give an IP address"),
    ],
)
def test_what_cannot_be_used_is_told_before_anything_is_served(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*LEAST, *given]) == cli.USAGE
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_the_help_names_options_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    told = set(re.findall(r"tcp\.(\w+)", capsys.readouterr().out))
    assert told <= set(TcpOptions.__struct_fields__)
    assert {"connections", "listen_host", "advertise", "tls_cert_file", "tls_ca_file"} <= told


class Keeping:
    """A member of a space that keeps one chain, without an engine."""

    def __init__(self, **tcp: Any) -> None:
        origin = make()
        options = NodeOptions(
            node="t0",
            nats_url="nats://127.0.0.1:9",
            host_tier_bytes=4 * origin.block_bytes,
            backends=("tcp",),
            backend_options={"tcp": tcp},
        )
        life = secrets.token_hex(8)
        exports = ExportTable(life, on_pin_ended=lambda event: None)
        outbox = Outbox(translate=Book(64, delay=1).translate)
        self.member = Member(options, origin, KEY, life, exports, outbox)
        self.chain = chain("a", 3)
        tier = self.member.tier
        draft = tier.begin(self.chain[:1], "")
        tier.extend(draft, self.chain[1:])
        tier.commit(draft, "a", "")
        self.facts = SpaceFacts(
            space=origin.space,
            components=origin.components,
            block_tokens=64,
            block_bytes=origin.block_bytes,
            ranks=1,
            algorithm=origin.algorithm,
            root=ROOT,
            key=KEY,
        )
        said = self.member.identity
        self.joined = NodeJoined(incarnation=life, epoch=1, address=said.address, block_size=64)

    def pulled(self, **tcp: Any) -> int:
        """How many blocks a peer with these options gets."""
        peer = Peer(self.facts, PAGES, **tcp)
        try:
            result = peer.pull(self.joined, self.chain)
            return result.count if result.ok else 0
        finally:
            peer.close()


@pytest.fixture
def keeping() -> Iterator[Keeping]:
    made = Keeping(connections=2, **files())
    yield made
    made.member.close()


def test_blocks_are_served_with_tls_to_who_has_it(keeping: Keeping) -> None:
    assert keeping.pulled(**files()) == 3
    assert keeping.pulled() == 0
    assert keeping.pulled(**files("stranger", "other_ca", "stranger")) == 0
