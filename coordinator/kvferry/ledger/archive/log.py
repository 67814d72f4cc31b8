"""An exported file behind the log port, for everything that only reads."""

from __future__ import annotations

import bisect
from collections.abc import AsyncGenerator
from pathlib import Path

from kvferry.errors import CodecError, ConfigError, LedgerRefused
from kvferry.ledger.archive.contents import Head, decode_messages, decode_object, newer_events
from kvferry.ledger.archive.scan import Damage, Place, payload, scan
from kvferry.ledger.subjects import matches, stream_of
from kvferry.ports.log import Stored, StreamBounds

READ_ONLY = "an exported file is not written to; import it into a ledger first"


class ArchiveLog:
    """LogPort and ObjectPort over a file. One chunk is in memory at a time.

    What is damaged is passed over, like messages that a stream has lost, and told in
    :attr:`damages`.
    """

    def __init__(self, path: Path) -> None:
        """
        Raises:
            ConfigError: no such file, none of ours, or one of a newer format.
        """
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        try:
            self._found = scan(self._file, path)
        except ConfigError:
            self._file.close()
            raise
        self._known = {damage.offset for damage in self._found.damages}

    @property
    def head(self) -> Head:
        return self._found.head

    @property
    def damages(self) -> list[Damage]:
        """What could not be read so far; chunks are checked when they are read."""
        return sorted(self._found.damages, key=lambda damage: damage.offset)

    def needs(self) -> str:
        """What this kvferry cannot read of it, and what can; empty when it reads all."""
        newer = newer_events(self.head)
        if not newer:
            return ""
        listed = ", ".join(f"{name} version {version}" for name, version in sorted(newer.items()))
        return (
            f"{self.path} may hold events that this kvferry cannot read ({listed}); use kvferry "
            f"{self.head.writer} or newer for them"
        )

    # --- LogPort ----------------------------------------------------------------------------

    async def append(
        self, subject: str, data: bytes, *, message_id: str, expected_last: int | None = None
    ) -> int:
        """Never.

        Raises:
            LedgerRefused: always.
        """
        raise LedgerRefused(READ_ONLY)

    async def append_many(self, batch: list[tuple[str, bytes, str]]) -> None:
        """Never.

        Raises:
            LedgerRefused: always.
        """
        raise LedgerRefused(READ_ONLY)

    async def read(
        self, stream: str, *, start: int = 1, follow: bool = False, subject: str = ">"
    ) -> AsyncGenerator[Stored, None]:
        """Messages from ``start`` on; ``follow`` ends at the file's end too, for none will come."""
        places = self._found.messages.get(stream, [])
        at = bisect.bisect_left([place.header.last for place in places], start)
        for place in places[at:]:
            for stored in self._messages(place):
                if stored.seq >= start and matches(subject, stored.subject):
                    yield stored

    async def bounds(self, stream: str) -> StreamBounds:
        """Of what was exported, damaged or not."""
        known = self.head.ranges.get(stream)
        places = self._found.messages.get(stream, [])
        if self._found.end is not None and known is not None:
            return StreamBounds(known.first, known.last)
        if not places:
            first = known.first if known is not None else 1
            return StreamBounds(first, first - 1)
        return StreamBounds(places[0].header.first, places[-1].header.last)

    async def last_of_subject(self, subject: str) -> Stored | None:
        """Looks from the end, chunk by chunk."""
        for place in reversed(self._found.messages.get(stream_of(subject), [])):
            for stored in reversed(self._messages(place)):
                if stored.subject == subject:
                    return stored
        return None

    async def close(self) -> None:
        self._file.close()

    # --- ObjectPort -------------------------------------------------------------------------

    async def put(self, name: str, data: bytes) -> None:
        """Never.

        Raises:
            LedgerRefused: always.
        """
        raise LedgerRefused(READ_ONLY)

    async def get(self, name: str) -> bytes | None:
        """Looked for when it is asked for: most readers need none, and a snapshot can be large."""
        for place in self._found.objects:
            data = self._payload(place)
            if data is not None and (found := decode_object(data)).name == name:
                return found.data
        return None

    async def delete(self, name: str) -> None:
        """Never.

        Raises:
            LedgerRefused: always.
        """
        raise LedgerRefused(READ_ONLY)

    # ----------------------------------------------------------------------------------------

    def _messages(self, place: Place) -> list[Stored]:
        data = self._payload(place)
        if data is None:
            return []
        try:
            return decode_messages(data)
        except CodecError as error:
            self._damaged(place, str(error))
            return []

    def _payload(self, place: Place) -> bytes | None:
        try:
            return payload(self._file, place)
        except CodecError as error:
            self._damaged(place, str(error))
            return None

    def _damaged(self, place: Place, why: str) -> None:
        if place.offset in self._known:
            return
        self._known.add(place.offset)
        header = place.header
        lost = f"; messages {header.first} to {header.last} are lost" if header.last else ""
        self._found.damages.append(Damage(place.offset, why + lost))
