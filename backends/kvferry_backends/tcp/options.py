"""What an operator can set, checked by name."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping

import msgspec

from kvferry.errors import ConfigError
from kvferry_backends.options import convert_options
from kvferry_backends.tcp.tls.files import TlsFiles

CONNECTIONS_MAX = 16
CHOSEN_CONNECTIONS_MIN, CHOSEN_CONNECTIONS_MAX = 2, 8
"""A connection takes about one core at each end, and the engine needs some too."""
READS_MAX = 256
SERVED_MAX = 4096
TIMEOUT_MAX_S = 3600.0


class TcpOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the tcp backend."""

    listen_host: str = "127.0.0.1"
    """IP address to serve on."""
    listen_port: int = 0
    """Port to serve on; 0 takes a free one."""
    advertise: str = ""
    """``ip:port`` under which peers reach us, where it differs (NAT)."""
    connections: int = 0
    """Connections over which one read is striped; 0 takes half the cores, from 2 to 8."""
    chunk_blocks: int = 0
    """Blocks between two digests; 0 chooses by size."""
    timeout_s: float = 30.0
    """Longest that one read is served, whatever deadline the peer asks for."""
    reads: int = 16
    """Reads of ours under way at one time."""
    serve_connections: int = 64
    """Connections that are served at one time; idle ones make room."""
    serve_transfers: int = 32
    """Transfers that are served at one time; one more is refused as ``busy``."""
    serve_bytes: int = 16 * 1024**3
    """Bytes of the transfers served at one time; what goes beyond is refused as ``busy``."""

    tls_cert_file: str = ""
    """Our certificate, in PEM, for both roles. With the next two: TLS 1.3 on every connection,
    both ends show a certificate. Without all three: no TLS."""
    tls_key_file: str = ""
    """Its key, without a password."""
    tls_ca_file: str = ""
    """The CA whose certificates we accept."""

    @property
    def tls(self) -> TlsFiles | None:
        """The files for TLS, or None without."""
        if not self.tls_cert_file:
            return None
        return TlsFiles(self.tls_cert_file, self.tls_key_file, self.tls_ca_file)

    @property
    def connections_per_read(self) -> int:
        """``connections``, chosen where it is 0."""
        if self.connections:
            return self.connections
        cores = len(os.sched_getaffinity(0))
        return min(max(cores // 2, CHOSEN_CONNECTIONS_MIN), CHOSEN_CONNECTIONS_MAX)


def parse_options(options: Mapping[str, object]) -> TcpOptions:
    """``options`` as checked values.

    Raises:
        ConfigError: an option is unknown, of the wrong type or out of range; the text names it.
    """
    parsed = convert_options("tcp", options, TcpOptions)
    _check(parsed)
    return parsed


def split_address(address: str) -> tuple[str, int]:
    """``ip:port`` or ``[ip]:port`` as a pair.

    Names are not taken: resolving one has no deadline of ours.

    Raises:
        ConfigError: it is neither.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError as error:
        raise ConfigError(f"{address!r} is not ip:port, for example 10.0.0.7:7100") from error
    if not 0 < number < 65536:
        raise ConfigError(f"{address!r} has no port between 1 and 65535")
    return host, number


def join_address(host: str, port: int) -> str:
    """The reverse of :func:`split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_listening(backend: str, host: str, port: int, advertise: str) -> None:
    """Check where a backend serves and under which address peers reach it.

    Raises:
        ConfigError: ``listen_host``, ``listen_port`` or ``advertise`` is wrong.
    """
    try:
        listen = ipaddress.ip_address(host)
    except ValueError as error:
        raise ConfigError(f"{backend} backend: listen_host {error}; give an IP address") from error
    if not 0 <= port < 65536:
        raise ConfigError(f"{backend} backend: listen_port {port} is not 0 to 65535")
    if advertise:
        split_address(advertise)
    elif listen.is_unspecified:
        raise ConfigError(
            f"{backend} backend: listen_host {host} means every interface, which no peer "
            "can connect to; set advertise to this machine's ip:port"
        )


def _check_tls(options: TcpOptions) -> None:
    names = ("tls_cert_file", "tls_key_file", "tls_ca_file")
    missing = [name for name in names if not getattr(options, name)]
    if missing and len(missing) < len(names):
        raise ConfigError(f"tcp backend: TLS also needs {', '.join(missing)}; set all three")
    if options.tls is not None:
        from kvferry_backends.tcp.tls.contexts import rehearse

        rehearse(options.tls)


def _check(options: TcpOptions) -> None:
    _check_tls(options)
    check_listening("tcp", options.listen_host, options.listen_port, options.advertise)
    for name, least, most in (
        ("connections", 0, CONNECTIONS_MAX),
        ("reads", 1, READS_MAX),
        ("serve_connections", 1, SERVED_MAX),
        ("serve_transfers", 1, SERVED_MAX),
    ):
        value = getattr(options, name)
        if not least <= value <= most:
            raise ConfigError(f"tcp backend: {name} {value} is not {least} to {most}")
    if options.serve_bytes < 1:
        raise ConfigError(f"tcp backend: serve_bytes {options.serve_bytes} is not above 0")
    if options.chunk_blocks < 0:
        raise ConfigError(f"tcp backend: chunk_blocks {options.chunk_blocks} is negative")
    if not 0 < options.timeout_s <= TIMEOUT_MAX_S:
        raise ConfigError(
            f"tcp backend: timeout_s {options.timeout_s} is not above 0 and up to {TIMEOUT_MAX_S}"
        )
