"""The NATS server: JetStream, our two streams, its clock."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import msgspec

from kvferry.cli.checks.finding import Finding, fail, ok, warn
from kvferry.cli.render import size
from kvferry.cli.times import duration
from kvferry.errors import LedgerError
from kvferry.ledger.streams import OBJECTS_STREAM, OBJECTS_SUBJECTS
from kvferry.ledger.subjects import BLOCKS_SUBJECTS, FACTS_SUBJECTS
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM, BusPort

ASK_S = 3.0
SKEW_MAX_MS = 1_000.0
FACTS_HISTORY_MIN_MS = 3_600_000
OUR_SUBJECTS = {
    FACTS_STREAM: set(FACTS_SUBJECTS),
    BLOCKS_STREAM: set(BLOCKS_SUBJECTS),
    OBJECTS_STREAM: set(OBJECTS_SUBJECTS),
}
ENSURE = "let `kvferry up` or `kvferry coordinator` create it, with the right to create streams"


async def jetstream_api(bus: BusPort, subject: str) -> dict[str, Any]:
    """One answer of the server's own JSON API."""
    answer: dict[str, Any] = msgspec.json.decode(
        await bus.request(f"$JS.API.{subject}", b"", ASK_S), type=dict[str, Any]
    )
    return answer


async def check_server(bus: BusPort) -> list[Finding]:
    """JetStream is on, the streams are ours and bounded, the clocks agree."""
    try:
        info = await jetstream_api(bus, "INFO")
    except LedgerError as error:
        return [
            fail(
                "jetstream",
                f"the server answers, JetStream does not: {error}",
                "start nats-server with JetStream (-js, or a jetstream block in its "
                "configuration), or give this account a JetStream quota",
            )
        ]
    if "error" in info:
        text = str(info["error"].get("description", info["error"]))
        return [fail("jetstream", text, "turn JetStream on for this account")]
    findings = [ok("jetstream", f"on, {size(int(info.get('storage', 0)))} stored")]
    for stream in OUR_SUBJECTS:
        findings += await _check_stream(bus, stream)
    return findings


async def _check_stream(bus: BusPort, stream: str) -> list[Finding]:
    check = f"stream {stream}"
    asked_ms = time.time() * 1_000
    try:
        info = await jetstream_api(bus, f"STREAM.INFO.{stream}")
    except LedgerError as error:
        return [fail(check, f"no answer about it: {error}", ENSURE)]
    heard_ms = time.time() * 1_000
    if "error" in info:
        return [fail(check, str(info["error"].get("description", info["error"])), ENSURE)]
    config, state = info["config"], info["state"]
    subjects = set(config.get("subjects") or ())
    if subjects != OUR_SUBJECTS[stream]:
        return [
            fail(
                check,
                f"holds the subjects {', '.join(sorted(subjects)) or 'of a mirror'}, "
                f"not {', '.join(sorted(OUR_SUBJECTS[stream]))}",
                "it is another program's stream: use another NATS account, or remove it",
            )
        ]
    findings = _check_limits(stream, config, state)
    findings += _check_history(check, stream, config, state)
    if stream == FACTS_STREAM and info.get("ts"):
        findings.append(_check_clock(str(info["ts"]), asked_ms, heard_ms))
    return findings


def _check_limits(stream: str, config: dict[str, Any], state: dict[str, Any]) -> list[Finding]:
    check = f"stream {stream}"
    max_bytes, max_age_ns = int(config.get("max_bytes", -1)), int(config.get("max_age", 0))
    found = []
    if max_bytes <= 0:
        found.append(warn(check, "has no limit in bytes", "set max_bytes, or it fills the disk"))
    if config.get("storage") != "file":
        found.append(
            warn(check, "is kept in memory only", "recreate it with file storage to keep history")
        )
    # Snapshots that do not fit are refused; facts must never be.
    if stream != OBJECTS_STREAM and config.get("discard", "old") != "old":
        found.append(fail(check, "refuses new messages when full", "set its discard policy to old"))
    if not found:
        age = f", {duration(max_age_ns / 1e6)}" if max_age_ns else ""
        found.append(
            ok(
                check,
                f"{state['messages']} messages, {size(state['bytes'])} of at most "
                f"{size(max_bytes)}{age}, {config.get('num_replicas', 1)} replica(s)",
            )
        )
    return found


def _check_history(
    check: str, stream: str, config: dict[str, Any], state: dict[str, Any]
) -> list[Finding]:
    """A stream that drops its oldest by size keeps less history than its age limit promises."""
    max_bytes = int(config.get("max_bytes", -1))
    if stream != FACTS_STREAM or max_bytes <= 0 or int(state["bytes"]) < 0.9 * max_bytes:
        return []
    kept_ms = _unix_ms(state["last_ts"]) - _unix_ms(state["first_ts"])
    if kept_ms >= FACTS_HISTORY_MIN_MS:
        return []
    return [
        warn(
            check,
            f"is full and holds only the last {duration(kept_ms)}",
            "give it more bytes: more free disk for `kvferry up`, or a higher max_bytes",
        )
    ]


def _check_clock(server_time: str, asked_ms: float, heard_ms: float) -> Finding:
    """The server read its clock between our question and its answer, so the bound is sound."""
    server_ms = _unix_ms(server_time)
    skew_ms = max(asked_ms - server_ms, server_ms - heard_ms, 0.0)
    if skew_ms > SKEW_MAX_MS:
        return warn(
            "clock",
            f"this machine and the NATS server differ by at least {duration(skew_ms)}",
            "run a time service on both; hints expire by the clock on the wall, and --to TIME "
            "means the server's",
        )
    return ok("clock", "this machine and the NATS server agree to within a second")


def _unix_ms(text: str) -> float:
    # Go writes nanoseconds, which Python reads as far as microseconds.
    return datetime.fromisoformat(text).timestamp() * 1_000
