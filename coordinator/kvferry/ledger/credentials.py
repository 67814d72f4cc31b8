"""Who we are to a NATS server, and how its errors read to us."""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from kvferry.errors import ConfigError

VARIABLES = {
    "KVFERRY_NATS_USER": "user",
    "KVFERRY_NATS_PASSWORD": "password",
    "KVFERRY_NATS_TOKEN": "token",
    "KVFERRY_NATS_NKEY_FILE": "nkey_seed_file",
    "KVFERRY_NATS_CREDS_FILE": "creds_file",
    "KVFERRY_NATS_TLS_CA": "tls_ca",
    "KVFERRY_NATS_TLS_CERT": "tls_cert",
    "KVFERRY_NATS_TLS_KEY": "tls_key",
}
"""Of a command's environment, for :class:`Credentials`: a command's arguments can be read by every
user, so secrets come from there."""
INBOX_VARIABLE = "KVFERRY_NATS_INBOX_PREFIX"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """All optional; paths are of files. Secrets never appear in its ``repr``."""

    user: str = ""
    password: str = ""
    token: str = ""
    nkey_seed_file: str = ""
    creds_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    def __repr__(self) -> str:
        given = ", ".join(name for name in self.__struct_fields__ if getattr(self, name))
        return f"Credentials({given or 'none'})"


def from_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The fields of :class:`Credentials` that a command's environment gives."""
    return {field: env[name] for name, field in VARIABLES.items() if env.get(name)}


def client_options(credentials: Credentials) -> dict[str, Any]:
    """The credentials as keyword arguments of nats-py's ``connect``.

    Raises:
        ConfigError: a file is missing or unfit, or options exclude each other.
    """
    options: dict[str, Any] = {}
    for name in ("user", "password", "token"):
        value = getattr(credentials, name)
        if value:
            options[name] = value
    if credentials.password and not credentials.user:
        raise ConfigError("a NATS password without a user: set both")
    if credentials.nkey_seed_file and credentials.creds_file:
        raise ConfigError("nkey_seed_file and creds_file exclude each other: set one")
    for name, option in (("nkey_seed_file", "nkeys_seed"), ("creds_file", "user_credentials")):
        path = getattr(credentials, name)
        if path:
            _check_readable(name, path)
            if importlib.util.find_spec("nkeys") is None:
                raise ConfigError(f"{name} needs the package nkeys: pip install nkeys")
            options[option] = path
    if credentials.tls_ca or credentials.tls_cert or credentials.tls_key:
        options["tls"] = _tls_context(credentials)
    return options


def _check_readable(name: str, path: str) -> None:
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise ConfigError(f"{name} {path!r} cannot be read: {error.strerror}") from error


def _tls_context(credentials: Credentials) -> ssl.SSLContext:
    if bool(credentials.tls_cert) != bool(credentials.tls_key):
        raise ConfigError("tls_cert and tls_key belong together: set both")
    for name in ("tls_ca", "tls_cert", "tls_key"):
        path = getattr(credentials, name)
        if path:
            _check_readable(name, path)
    try:
        context = ssl.create_default_context(cafile=credentials.tls_ca or None)
        if credentials.tls_cert:
            context.load_cert_chain(credentials.tls_cert, credentials.tls_key)
    except ssl.SSLError as error:
        raise ConfigError(f"the TLS files of the ledger cannot be used: {error}") from error
    return context


def servers_of(url: str) -> list[str]:
    """The servers of a comma-separated url, each checked.

    Raises:
        ConfigError: not the url of a NATS server.
    """
    servers = [part.strip() for part in url.split(",") if part.strip()]
    if not servers:
        raise ConfigError("the ledger's url is empty: give one such as nats://127.0.0.1:4222")
    for server in servers:
        try:
            parts = urlsplit(server if "//" in server else f"nats://{server}")
            valid = bool(parts.hostname) and parts.scheme in ("nats", "tls") and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise ConfigError(
                f"{without_secrets(server)!r} is not the url of a NATS server: "
                "give one such as nats://127.0.0.1:4222"
            )
    return servers


def without_secrets(url: str) -> str:
    """The url for logs and errors."""
    shown = []
    for server in url.split(","):
        head, found, tail = server.rpartition("@")
        if not found:
            shown.append(server)
            continue
        scheme = urlsplit(head).scheme if "//" in head else ""
        shown.append(urlunsplit((scheme, tail, "", "", "")) if scheme else tail)
    return ",".join(shown)
