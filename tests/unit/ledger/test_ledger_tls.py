"""TLS and a client certificate, against a server that asks for both."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.ledger.support import RawServer, within

from kvferry.errors import LedgerRefused, LedgerUnavailable
from kvferry.ledger.credentials import Credentials
from kvferry.ledger.jetstream import connect

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def named(name: str) -> tuple[str, str]:
    return "-subj", f"/CN={name}"


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """``ca.pem``, and ``server`` and ``client`` signed by it."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        tmp_path, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca"
    )
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl(
            tmp_path, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", *named(name)
        )
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl(tmp_path, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signer)
    return tmp_path


@pytest.fixture
def tls_server(certificates: Path, tmp_path: Path) -> Iterator[RawServer]:
    tls = {
        "cert_file": str(certificates / "server.pem"),
        "key_file": str(certificates / "server.key"),
        "ca_file": str(certificates / "ca.pem"),
        "verify": True,
    }
    server = RawServer(tmp_path, tls=tls)
    yield server
    server.kill()


async def test_a_trusted_pair_talks(tls_server: RawServer, certificates: Path) -> None:
    ours = Credentials(
        tls_ca=str(certificates / "ca.pem"),
        tls_cert=str(certificates / "client.pem"),
        tls_key=str(certificates / "client.key"),
    )
    ledger = await connect(tls_server.url, name="test", credentials=ours)
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
