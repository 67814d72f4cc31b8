"""Certificates made on the spot, and a nats-server that asks for them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.unit.ledger.support import RawServer

from kvferry.ledger.credentials import Credentials

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl command"
)


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def named(name: str) -> tuple[str, str]:
    return "-subj", f"/CN={name}"


def make_certificates(folder: Path) -> None:
    """``ca.pem``, and ``server`` and ``client`` signed by it."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl(folder, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", *named(name))
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signer)


def client(folder: Path) -> Credentials:
    """Whom the server lets in."""
    return Credentials(
        tls_ca=str(folder / "ca.pem"),
        tls_cert=str(folder / "client.pem"),
        tls_key=str(folder / "client.key"),
    )


def serve_tls(folder: Path) -> RawServer:
    """A server with the folder's certificates that lets in whom its authority has signed."""
    tls = {
        "cert_file": str(folder / "server.pem"),
        "key_file": str(folder / "server.key"),
        "ca_file": str(folder / "ca.pem"),
        "verify": True,
    }
    return RawServer(folder, tls=tls)
