"""Perfetto's trace format: a row of packets, made with its own protobuf classes."""

from __future__ import annotations

from typing import Any, BinaryIO

from kvferry.errors import ConfigError

SEQUENCE = 1
Annotation = str | int | float
US_PER_MS, NS_PER_US = 1_000, 1_000


class Packets:
    """Writes packets to a file as they come. All times are Unix milliseconds."""

    def __init__(self, file: BinaryIO) -> None:
        """
        Raises:
            ConfigError: the package with the format's classes is not installed.
        """
        try:
            from perfetto.protos.perfetto.trace import perfetto_trace_pb2
        except ImportError as error:
            raise ConfigError(
                f"traces for Perfetto need its Python package ({error}): "
                "pip install 'kvferry[perfetto]'"
            ) from error
        self._pb = perfetto_trace_pb2
        self._file = file
        self.written = 0

    def track(self, uuid: int, name: str, parent: int = 0) -> None:
        """A named track; with a parent, one beneath it."""
        packet = self._packet()
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.name = name
        if parent:
            packet.track_descriptor.parent_uuid = parent
        self._write(packet)

    def begin(
        self,
        track: int,
        at_ms: float,
        name: str,
        *,
        category: str,
        notes: dict[str, Annotation],
        flow: int = 0,
        last_of_flow: bool = False,
    ) -> None:
        """A slice begins. Slices with the same ``flow`` are joined by an arrow."""
        event = self._event(self._pb.TrackEvent.TYPE_SLICE_BEGIN, track, at_ms, name, category)
        self._annotate(event, notes)
        if flow and last_of_flow:
            event.track_event.terminating_flow_ids.append(flow)
        elif flow:
            event.track_event.flow_ids.append(flow)
        self._write(event)

    def end(self, track: int, at_ms: float) -> None:
        """The track's slice that began last ends."""
        packet = self._packet(at_ms)
        packet.track_event.type = self._pb.TrackEvent.TYPE_SLICE_END
        packet.track_event.track_uuid = track
        self._write(packet)

    def instant(
        self, track: int, at_ms: float, name: str, *, category: str, notes: dict[str, Annotation]
    ) -> None:
        """Something that takes no time."""
        event = self._event(self._pb.TrackEvent.TYPE_INSTANT, track, at_ms, name, category)
        self._annotate(event, notes)
        self._write(event)

    def _event(self, kind: int, track: int, at_ms: float, name: str, category: str) -> Any:
        packet = self._packet(at_ms)
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        packet.track_event.name = name
        packet.track_event.categories.append(category)
        return packet

    def _packet(self, at_ms: float | None = None) -> Any:
        packet = self._pb.TracePacket()
        packet.trusted_packet_sequence_id = SEQUENCE
        if at_ms is not None:
            # To the microsecond: finer than that, a float has no room beside the date.
            packet.timestamp = round(at_ms * US_PER_MS) * NS_PER_US
        return packet

    def _annotate(self, packet: Any, notes: dict[str, Annotation]) -> None:
        for name, value in notes.items():
            if value == "" or value is None:
                continue
            note = packet.track_event.debug_annotations.add()
            note.name = name
            if isinstance(value, bool):
                note.bool_value = value
            elif isinstance(value, str):
                note.string_value = value
            elif isinstance(value, int):
                note.int_value = value
            else:
                note.double_value = value

    def _write(self, packet: Any) -> None:
        # A trace is one repeated field, so its packets can be written one by one.
        self._file.write(self._pb.Trace(packet=[packet]).SerializeToString())
        self.written += 1
