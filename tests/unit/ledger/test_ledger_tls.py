"""TLS and a client certificate, against a server that asks for both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.ledger.support import RawServer, within
from tests.unit.ledger.tls import client, make_certificates, needs_openssl, serve_tls

from kvferry.errors import LedgerRefused, LedgerUnavailable
from kvferry.ledger.credentials import Credentials
from kvferry.ledger.jetstream import connect

pytestmark = needs_openssl


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    make_certificates(tmp_path)
    return tmp_path


@pytest.fixture
def tls_server(certificates: Path) -> Iterator[RawServer]:
    server = serve_tls(certificates)
    yield server
    server.kill()


async def test_a_trusted_pair_talks(tls_server: RawServer, certificates: Path) -> None:
    ledger = await connect(tls_server.url, name="test", credentials=client(certificates))
    await ledger.ensure_streams()
    assert await ledger.append("kvf.s.p0.facts", b"x", message_id="1") == 1
    await within(ledger.close())


async def test_an_unknown_authority_is_refused_with_the_cure(tls_server: RawServer) -> None:
    with pytest.raises(LedgerRefused, match="tls_ca"):
        await connect(tls_server.url, name="test")


async def test_no_client_certificate_is_not_let_in(
    tls_server: RawServer, certificates: Path
) -> None:
    nameless = Credentials(tls_ca=str(certificates / "ca.pem"))
    with pytest.raises((LedgerRefused, LedgerUnavailable)):
        await connect(tls_server.url, name="test", credentials=nameless)
