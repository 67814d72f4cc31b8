"""What an operator asks of an engine: heard on the agent's thread, carried out on the engine's."""

from __future__ import annotations

from kvferry.core.retention_settings import AS_STARTED, RetentionSettings
from kvferry.node.export.table import ExportTable
from kvferry_connectors.vllm.exports import Exports


class Steering:
    """The mode and how to keep.

    Attributes:
        mode: ``on``, ``paused`` or ``observe``.
    """

    def __init__(self, table: ExportTable) -> None:
        self.mode = "on"
        self._table = table
        self._settings = AS_STARTED
        self._changed = False

    # --- the agent's thread -----------------------------------------------------------------

    def on_mode(self, mode: str) -> None:
        """Peers are refused at once, leases drain at the next step."""
        self.mode = mode
        self._table.pause(mode != "on")
        self._changed = True

    def on_retention(self, settings: RetentionSettings) -> None:
        """How to keep from the next step on."""
        self._settings = settings
        self._changed = True

    # --- the engine's thread ----------------------------------------------------------------

    def apply(self, exports: Exports) -> bool:
        """Once a step: carry out what has changed. True where all that is offered has to go."""
        if not self._changed:
            return False
        self._changed = False
        exports.paused = self.mode == "paused"
        exports.leasing.on = self.mode == "on"
        exports.leasing.keep_by(self._settings)
        return exports.paused
