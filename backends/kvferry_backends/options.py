"""What an operator gives a backend, as checked values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from kvferry.errors import ConfigError

OptionsT = TypeVar("OptionsT", bound=msgspec.Struct)


def convert_options(backend: str, options: Mapping[str, object], shape: type[OptionsT]) -> OptionsT:
    """``options`` as a ``shape``, whose fields are the options that ``backend`` has.

    Raises:
        ConfigError: an option is unknown or of the wrong type; the text names it.
    """
    known = shape.__struct_fields__
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(
            f"{backend} backend: unknown option {', '.join(unknown)}; known are {', '.join(known)}"
        )
    try:
        return msgspec.convert(dict(options), shape)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{backend} backend: {error}") from error


def parse_assigned(flag: str, texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """``tcp.connections=4`` as ``{"tcp": {"connections": 4}}``; values are JSON, or plain text.

    Args:
        flag: of the command line, for the error's text.

    Raises:
        ConfigError: one is not BACKEND.OPTION=VALUE.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        name, dot, option = path.partition(".")
        if not (equals and dot and name and option):
            raise ConfigError(
                f"{flag} {text!r} is not BACKEND.OPTION=VALUE, as in tcp.connections=4"
            )
        found.setdefault(name, {})[option] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
