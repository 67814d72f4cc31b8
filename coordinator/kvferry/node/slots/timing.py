"""How patient a router is with the coordinator that lends decode slots."""

from __future__ import annotations

import msgspec

from kvferry.errors import ConfigError


class SlotTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of every wait of a :class:`kvferry.node.slots.client.SlotClient`, in seconds.

    Raises:
        ConfigError: one is not above zero; the text names it.
    """

    ask_within_s: float = 3.0
    """For one question, however often it has to be sent. Longer than coordinators need to replace
    a leader that died."""
    try_s: float = 0.7
    """For one answer of one replica; then the question is sent again."""
    pause_s: float = 0.05
    """Before a question is sent again to a replica that could not answer it."""
    end_within_s: float = 3.0
    """For the end of a lease to be acknowledged before the caller goes on."""
    end_keep_s: float = 600.0
    """How long an end that was not acknowledged is said again in the background."""
    renew_share: float = 1 / 3
    """Of how long a holder may act without a sign: how often leases are renewed."""
    idle_s: float = 1.0
    """How often the background looks whether something is left to be said."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not value > 0:
                raise ConfigError(f"option {name} is {value!r}; use a number above zero")
