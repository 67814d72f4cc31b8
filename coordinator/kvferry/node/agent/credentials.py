"""Who a node is to the ledger's server: as its settings name it, and from a command's variables."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvferry.errors import ConfigError
from kvferry.ledger.credentials import (
    INBOX_VARIABLE,
    Credentials,
    client_options,
    from_environment,
)
from kvferry.node.agent.settings import NodeSettings

_FIELDS = {name: name for name in Credentials.__struct_fields__} | {
    "tls_ca": "tls_ca_file",
    "tls_cert": "tls_cert_file",
    "tls_key": "tls_key_file",
}
"""Fields of :class:`Credentials`, and what a node's settings call them."""


def credentials_of(settings: NodeSettings) -> Credentials:
    """What the settings say of who the node is."""
    return Credentials(**{field: getattr(settings, name) for field, name in _FIELDS.items()})


def nats_credentials(env: Mapping[str, str], creds_file: str = "") -> dict[str, str]:
    """A node's ``nats_credentials``, from the variables that ``kvferry --help`` names.

    Args:
        env: of the command that runs the node.
        creds_file: goes before the variable.

    Raises:
        ConfigError: a file is missing or unfit, or variables exclude each other.
    """
    given = from_environment(env) | ({"creds_file": creds_file} if creds_file else {})
    # A node asks the server later and then over and over; a wrong file is told before it begins.
    client_options(Credentials(**given))
    named = {_FIELDS[field]: value for field, value in given.items()}
    inbox = env.get(INBOX_VARIABLE)
    return named | ({"inbox_prefix": inbox} if inbox else {})


def settings_from(
    nats_url: str, node: str, credentials: Mapping[str, str], source: str
) -> NodeSettings:
    """Settings of a node that leaves all patience as it is.

    Args:
        credentials: as ``nats_credentials`` of an engine has them.
        source: the options that these come from, for errors.

    Raises:
        ConfigError: the node's name or a credential cannot be used.
    """
    try:
        return msgspec.convert({"nats_url": nats_url, "node": node, **credentials}, NodeSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from error
