"""The options of `kvferry whatif` that make a policy, with an error for each that is none."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvferry.cli.quantities import finite, parse_number, parse_share
from kvferry.core.cost import pair_key
from kvferry.core.retention_settings import KEEP_MS_MAX, SHARE_MAX
from kvferry.errors import ConfigError
from kvferry.replay.whatif.policy import Policy

EXTRA_DECODE_MAX = 64
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(kb|mb|gb|tb|kib|mib|gib|tib|b|)", re.IGNORECASE)
_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_FACTOR = re.compile(r"(\d+(?:\.\d+)?)\s*x", re.IGNORECASE)
_LINK = re.compile(r"([^:=\s]+):([^:=\s]+)=(.+)")


def parse_policy(
    *,
    ttl: str | None = None,
    lease_budget: str | None = None,
    free_watermark: str | None = None,
    retain_max: str | None = None,
    pool: str | None = None,
    host_tier: str | None = None,
    threshold: str | None = None,
    min_pull_tokens: str | None = None,
    link_rates: Sequence[str] = (),
    extra_decode: str | None = None,
    recorded_cost: str = "learned",
) -> Policy:
    """The policy that these options ask for; an option that is None changes nothing.

    Raises:
        ConfigError: one cannot be used; names it and the cure.
    """
    if recorded_cost not in ("learned", "off"):
        raise ConfigError(f"--recorded-cost {recorded_cost!r}: use learned or off")
    factor, links = _links(link_rates)
    return Policy(
        ttl_s=_seconds("--ttl", ttl),
        lease_budget=_share("--lease-budget", lease_budget),
        free_watermark=_share("--free-watermark", free_watermark),
        retain_max_s=_seconds("--retain-max", retain_max),
        pool=_factor("--pool", pool) if pool is not None else 1.0,
        host_tier_bytes=_bytes(host_tier) if host_tier is not None else None,
        threshold_ms=(
            parse_number("--threshold", threshold, 1e9, "milliseconds")
            if threshold is not None
            else 0.0
        ),
        min_pull_tokens=(
            _whole("--min-pull-tokens", min_pull_tokens, 1 << 30)
            if min_pull_tokens is not None
            else None
        ),
        link_factor=factor,
        links=links,
        extra_decode=(
            _whole("--extra-decode", extra_decode, EXTRA_DECODE_MAX)
            if extra_decode is not None
            else 0
        ),
        weighed=recorded_cost == "learned",
    )


def _seconds(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    return parse_number(option, text, KEEP_MS_MAX / 1_000, "seconds")


def _share(option: str, text: str | None) -> float | None:
    return parse_share(option, text, SHARE_MAX, "a pool") if text is not None else None


def _links(texts: Sequence[str]) -> tuple[float, dict[str, float]]:
    factor, links = 1.0, {}
    for text in texts:
        if _FACTOR.fullmatch(text.strip()):
            if factor != 1.0:
                raise ConfigError("--link-rate: more than one factor for all links; give one")
            factor = _factor("--link-rate", text)
            continue
        match = _LINK.fullmatch(text.strip())
        rate = finite(match[3]) if match is not None else None
        if match is None or rate is None or not 0 < rate < 1e6:
            raise ConfigError(
                f"--link-rate {text!r} is no rate: write SRC:DST=GB/s, as p0:d1=12.5, or a factor "
                "for all links, as 0.5x"
            )
        if match[1] == match[2]:
            raise ConfigError(f"--link-rate {text!r}: a node has no link to itself; name two")
        links[pair_key(match[1], match[2])] = rate * 1e9
    return factor, links


def _factor(option: str, text: str) -> float:
    match = _FACTOR.fullmatch(text.strip())
    if match is None or not 0.001 <= float(match[1]) <= 1_000:
        raise ConfigError(
            f"{option} {text!r} is no factor: write it as 0.5x or 2x, from 0.001x to 1000x"
        )
    return float(match[1])


def _bytes(text: str) -> int:
    if text.strip().lower() == "off":
        return 0
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"--host-tier {text!r} is no size: write bytes, as 64GB, 512MiB or a number, or off"
        )
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _whole(option: str, text: str, most: int) -> int:
    if not text.strip().isdecimal() or int(text) > most:
        raise ConfigError(f"{option} {text!r}: use a whole number from 0 to {most:,}")
    return int(text)
