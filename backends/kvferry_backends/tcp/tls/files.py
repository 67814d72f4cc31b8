"""What an operator gives for TLS."""

from __future__ import annotations

import msgspec


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths of PEM files."""

    cert: str
    key: str
    ca: str
