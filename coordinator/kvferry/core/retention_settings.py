"""How a node keeps: what an operator sets while engines run, over what each was started with."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

LEASE_BUDGET, FREE_WATERMARK = 0.10, 0.05
"""Shares of a pool that are taken where a node does not say how it keeps: the connector's
defaults."""
SHARE_MAX = 0.9
"""Leases and the watermark leave running requests at least the rest of a pool."""
KEEP_MS_MAX = 7 * 86_400_000


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings by the names of the connector's options; None where nothing is set."""

    lease_ms: int | None = None
    """How long a lease lasts; 0 leases nothing."""
    retain_max_ms: int | None = None
    """A request may ask for its blocks to be leased for so long at most; 0 lets none ask."""
    lease_budget: float | None = None
    """Share of a node's KV blocks that leases may hold; 0 leases nothing."""
    free_watermark: float | None = None
    """Leases end while fewer blocks than this share of the pool are free."""
    host_budget: float | None = None
    """Share of a node's host tier that may be in use; 0 empties it."""

    def given(self) -> dict[str, int | float]:
        """What is set, by name."""
        return {name: value for name in SETTINGS if (value := getattr(self, name)) is not None}

    def over(self, below: RetentionSettings) -> RetentionSettings:
        """What is set here, and of the rest what is set ``below``."""
        return msgspec.structs.replace(below, **self.given())

    def without(self, names: Iterable[str]) -> RetentionSettings:
        """The same with these names not set; a name that this version does not know is none."""
        return msgspec.structs.replace(self, **{n: None for n in names if n in SETTINGS})


SETTINGS = RetentionSettings.__struct_fields__
AS_STARTED = RetentionSettings()
"""Nothing is set: every engine keeps as it was started."""

_MOST: dict[str, float] = {
    "lease_ms": KEEP_MS_MAX,
    "retain_max_ms": KEEP_MS_MAX,
    "lease_budget": SHARE_MAX,
    "free_watermark": SHARE_MAX,
    "host_budget": 1.0,
}


_WORDS = {
    "lease_ms": "leases last {s:g} s",
    "retain_max_ms": "a request may ask for {s:g} s",
    "lease_budget": "leases hold at most {percent:g} % of the pool",
    "free_watermark": "leases end while less than {percent:g} % of the pool is free",
    "host_budget": "{percent:g} % of the host tier may be in use",
}
_NONE = {
    "lease_ms": "nothing is leased",
    "retain_max_ms": "no request may ask for a lease",
    "lease_budget": "nothing is leased",
    "free_watermark": "leases end only where a request finds no room",
    "host_budget": "the host tier is emptied",
}


def in_words(settings: RetentionSettings, unset: Iterable[str] = ()) -> str:
    """What is set, and what is not any more, for people."""
    said = []
    for name, value in settings.given().items():
        words = _WORDS[name] if value else _NONE[name]
        said.append(words.format(s=value / 1_000, percent=round(100 * value, 3)))
    said += [f"{name} as before it was set" for name in unset]
    return ", ".join(dict.fromkeys(said))


def problem(settings: RetentionSettings, unset: Iterable[str] = ()) -> str:
    """What is wrong with settings, with the cure; empty where nothing is.

    Args:
        settings: what is to be set.
        unset: names that are to be as engines were started again.
    """
    for name, value in settings.given().items():
        most = _MOST[name]
        if not 0 <= value <= most:
            unit = "milliseconds" if name.endswith("_ms") else "a share"
            return f"{name}={value:g} is out of range: use {unit} from 0 to {most:g}"
    for name in unset:
        if name not in SETTINGS:
            return f"there is no retention setting {name!r}; known: {', '.join(SETTINGS)}"
        if getattr(settings, name) is not None:
            return f"{name} is both set and unset; say one of them"
    return ""
