"""Numbers as people write them on a command line, with an error that names the option."""

from __future__ import annotations

import math

from kvferry.errors import ConfigError


def parse_number(option: str, text: str, most: float, unit: str) -> float:
    """A number from 0 to ``most``.

    Raises:
        ConfigError: it is none.
    """
    value = finite(text)
    if value is None or not 0 <= value <= most:
        raise ConfigError(f"{option} {text!r}: use {unit} from 0 to {most:,.0f}")
    return value


def parse_share(option: str, text: str, most: float, whole: str) -> float:
    """A share of ``whole``, as ``0.2`` or ``20%``, from 0 to ``most``.

    Raises:
        ConfigError: it is none.
    """
    plain = text.strip().removesuffix("%").strip()
    value = finite(plain)
    if value is not None and text.strip().endswith("%"):
        value /= 100.0
    if value is None or not 0 <= value <= most:
        raise ConfigError(
            f"{option} {text!r} is no share of {whole}: write 0.2 or 20%, from 0 to {most:.0%}"
        )
    return value


def finite(text: str) -> float | None:
    """A finite number; None where the text is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
