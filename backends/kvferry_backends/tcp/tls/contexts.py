"""Certificates: loaded, tried out, and what is wrong with them in words of the options."""

from __future__ import annotations

import ssl
from pathlib import Path

from kvferry.errors import ConfigError
from kvferry_backends.tcp.tls.files import TlsFiles

FLIGHTS_MAX = 8
"""A handshake of TLS 1.3 takes two in each direction."""
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE"})


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """For connections that we make.

    Raises:
        ConfigError: a file is missing or is not what its option says.
    """
    return _context(files, ssl.PROTOCOL_TLS_CLIENT)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """For connections that we accept.

    Raises:
        ConfigError: a file is missing or is not what its option says.
    """
    context = _context(files, ssl.PROTOCOL_TLS_SERVER)
    # A ticket would come unasked, and whoever waits for data would wait behind it.
    context.num_tickets = 0
    return context


def rehearse(files: TlsFiles) -> None:
    """Shake hands with ourselves: does our certificate pass under our own CA, in both roles?

    Raises:
        ConfigError: a file is missing or wrong, or a peer with the same CA would turn us away.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(files).wrap_bio(to_client, to_server)
    server = server_context(files).wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(FLIGHTS_MAX):
            if all([_step(client), _step(server)]):
                return
    except ssl.SSLError as error:
        raise ConfigError(
            f"tcp backend: tls_cert_file {files.cert} does not pass under tls_ca_file {files.ca} "
            f"({_reason(error)}); give a certificate of that CA that is in date and may be used "
            "by servers and clients"
        ) from error
    raise ConfigError(f"tcp backend: no handshake comes about with tls_cert_file {files.cert}")


def why_not_connected(error: OSError) -> str:
    """Why a source and we found no way to speak TLS, and which option of which side cures it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the source's certificate is not accepted here ({_reason(error)}): its tls_cert_file "
            "has to be in date and of the CA in our tls_ca_file"
        )
    if isinstance(error, ssl.SSLEOFError) or getattr(error, "reason", "") in _NOT_TLS:
        return (
            "the source speaks no TLS, or broke off: set tls_cert_file, tls_key_file and "
            "tls_ca_file on it as here"
        )
    if isinstance(error, ssl.SSLError):
        return (
            f"the source does not accept our certificate ({_reason(error)}): our tls_cert_file has "
            "to be in date and of the CA in its tls_ca_file"
        )
    return f"no connection: {error}"


def why_not_accepted(error: OSError) -> str:
    """Why a target was turned away, and which option of which side cures it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted here ({_reason(error)}): its tls_cert_file has to be "
            "in date and of the CA in our tls_ca_file"
        )
    if getattr(error, "reason", "") in _NOT_TLS:
        return "it speaks no TLS: set tls_cert_file, tls_key_file and tls_ca_file on it as here"
    return f"it left during the handshake ({_reason(error)}); its own log says why"


def _context(files: TlsFiles, protocol: int) -> ssl.SSLContext:
    for option, path in (
        ("tls_cert_file", files.cert),
        ("tls_key_file", files.key),
        ("tls_ca_file", files.ca),
    ):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"tcp backend: {option} cannot be read: {error}") from error
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"tcp backend: tls_cert_file {files.cert} and tls_key_file {files.key} are not a "
            f"certificate and its key without a password, in PEM ({error})"
        ) from error
    try:
        context.load_verify_locations(cafile=files.ca)
    except ssl.SSLError as error:
        raise ConfigError(
            f"tcp backend: tls_ca_file {files.ca} holds no certificate in PEM ({error})"
        ) from error
    return context


def _no_password() -> str:
    """Asked for where a key has one; without this OpenSSL would ask at the terminal."""
    raise ValueError("the key has a password")


def _step(side: ssl.SSLObject) -> bool:
    """Whether this side has ended its handshake, as far as the other one has come."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    reason = getattr(error, "reason", "") or str(error)
    return str(reason).replace("_", " ").lower()
