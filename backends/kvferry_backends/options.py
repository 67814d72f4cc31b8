"""What an operator gives a backend, as checked values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

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
