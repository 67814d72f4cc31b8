"""Why a pull ends without use."""

from __future__ import annotations


class Failed(Exception):
    """The pull ends without use; carries ``stage``, ``reason`` and ``detail``."""

    def __init__(self, stage: str, reason: str, detail: str = "") -> None:
        super().__init__(f"{stage}: {reason}: {detail}")
        self.stage = stage
        self.reason = reason
        self.detail = detail


class BackendFailed(Failed):
    """A backend could not read, and is fenced: another one may."""
