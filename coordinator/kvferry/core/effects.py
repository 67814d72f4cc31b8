"""What the shell must do after a decision's events are stored."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kvferry.core.messages import Control


class SendControl(msgspec.Struct, frozen=True, kw_only=True):
    """Tell a node something; it may get lost, the next heartbeat brings it again."""

    space: str
    node: str
    control: Control


Effect: TypeAlias = SendControl
