"""Blobs by name in a NATS object store (the same layout, so other tools can read them)."""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable

import msgspec

from kvferry.errors import CodecError, LedgerError
from kvferry.ledger.append import Appender, Outgoing
from kvferry.ledger.jsapi import MESSAGE_ID, JetStreamApi
from kvferry.ledger.reader import Reader
from kvferry.ledger.replies import Replies
from kvferry.ledger.streams import OBJECTS_BUCKET, OBJECTS_STREAM
from kvferry.ports.log import Stored

_log = logging.getLogger("kvferry.ledger")

CHUNK_BYTES = 128 * 1024
DIGEST = "SHA-256="
META_SUBJECTS = f"$O.{OBJECTS_BUCKET}.M.>"
ORPHAN_AGE_S = 3600.0
ROLLUP = {"Nats-Rollup": "sub"}

LastOf = Callable[[str, str], Awaitable[Stored | None]]
"""The last message of (stream, subject)."""


class _Options(msgspec.Struct):
    max_chunk_size: int = CHUNK_BYTES


class _Info(msgspec.Struct, omit_defaults=True):
    """What stands in an object's meta message."""

    name: str
    bucket: str = ""
    nuid: str = ""
    size: int = 0
    chunks: int = 0
    mtime: str = ""
    digest: str = ""
    deleted: bool = False
    options: _Options = msgspec.field(default_factory=_Options)


def _chunk_subject(nuid: str) -> str:
    return f"$O.{OBJECTS_BUCKET}.C.{nuid}"


def _meta_subject(name: str) -> str:
    return f"$O.{OBJECTS_BUCKET}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


class Objects:
    """ObjectPort over the object stream. A reader sees the old object or the new one, whole."""

    def __init__(
        self, appender: Appender, replies: Replies, api: JetStreamApi, last_of: LastOf
    ) -> None:
        self._appender = appender
        self._replies = replies
        self._api = api
        self._last_of = last_of

    async def put(self, name: str, data: bytes) -> None:
        """See :meth:`kvferry.ports.log.ObjectPort.put`."""
        before = await self._info_or_none(name)
        nuid = secrets.token_hex(11)
        subject = _chunk_subject(nuid)
        view = memoryview(data)
        chunks = [
            Outgoing(subject, bytes(view[at : at + CHUNK_BYTES]), {MESSAGE_ID: f"{nuid}:{at}"})
            for at in range(0, len(data), CHUNK_BYTES)
        ]
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
        info = _Info(
            name=name,
            bucket=OBJECTS_BUCKET,
            nuid=nuid,
            size=len(data),
            chunks=len(chunks),
            mtime=datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z"),
            digest=DIGEST + digest,
        )
        try:
            await self._appender.store(chunks)
            await self._write_info(info)
        except LedgerError:
            await self._purge(nuid)
            raise
        if before is not None:
            await self._purge(before.nuid)

    async def get(self, name: str) -> bytes | None:
        """See :meth:`kvferry.ports.log.ObjectPort.get`.

        Raises:
            CodecError: what is stored is damaged.
        """
        info = await self._info(name)
        if info is None:
            return None
        parts: list[bytes] = []
        if info.size:
            reader = Reader(self._replies, self._api, OBJECTS_STREAM, 1, _chunk_subject(info.nuid))
            async for stored in reader.until_end():
                parts.append(stored.data)
        data = b"".join(parts)
        if hashlib.sha256(data).digest() != _digest_of(info):
            again = await self._info(name)
            if again is not None and again.nuid != info.nuid:
                return await self.get(name)  # replaced while we read
            raise CodecError(
                f"object {name!r} is damaged: its {len(data)} of {info.size} bytes do not fit "
                "its digest"
            )
        return data

    async def delete(self, name: str) -> None:
        """See :meth:`kvferry.ports.log.ObjectPort.delete`; nothing happens if it is not there."""
        info = await self._info_or_none(name)
        if info is None:
            return
        await self._write_info(
            _Info(name=name, bucket=OBJECTS_BUCKET, nuid=info.nuid, deleted=True)
        )
        await self._purge(info.nuid)

    async def sweep(self, older_than_s: float = ORPHAN_AGE_S) -> int:
        """Drop chunks that a writer which died left behind; how many objects' worth.

        Younger ones are kept: they may belong to a put that is under way.
        """
        asked = {"subjects_filter": _chunk_subject(">")}
        answer = await self._api.call(f"STREAM.INFO.{OBJECTS_STREAM}", asked)
        stray = set(answer["state"].get("subjects") or ())
        if stray:
            reader = Reader(self._replies, self._api, OBJECTS_STREAM, 1, META_SUBJECTS)
            async for stored in reader.until_end():
                try:
                    nuid = _decoded(stored.data, stored.subject).nuid
                except CodecError as error:
                    _log.warning("%s; its chunks are dropped once they are old enough", error)
                    continue
                stray.discard(_chunk_subject(nuid))
        dropped = 0
        for subject in sorted(stray):
            last = await self._last_of(OBJECTS_STREAM, subject)
            if last is not None and time.time() - last.stored_ms / 1000 > older_than_s:
                await self._purge(subject.rpartition(".")[2])
                dropped += 1
        return dropped

    async def _info(self, name: str) -> _Info | None:
        stored = await self._last_of(OBJECTS_STREAM, _meta_subject(name))
        if stored is None:
            return None
        info = _decoded(stored.data, name)
        return None if info.deleted else info

    async def _info_or_none(self, name: str) -> _Info | None:
        """Like :meth:`_info`; a damaged one is replaced, its chunks go with the next sweep."""
        try:
            return await self._info(name)
        except CodecError as error:
            _log.warning("%s; it is replaced", error)
            return None

    async def _write_info(self, info: _Info) -> None:
        subject = _meta_subject(info.name)
        message_id = f"{info.nuid}:meta:{info.deleted}"
        headers = ROLLUP | {MESSAGE_ID: message_id}
        await self._appender.store([Outgoing(subject, msgspec.json.encode(info), headers)])

    async def _purge(self, nuid: str) -> None:
        try:
            await self._api.call(f"STREAM.PURGE.{OBJECTS_STREAM}", {"filter": _chunk_subject(nuid)})
        except LedgerError as error:
            _log.warning("chunks of an old object stay in %s: %s", OBJECTS_STREAM, error)


def _decoded(data: bytes, name: str) -> _Info:
    try:
        return msgspec.json.decode(data, type=_Info)
    except msgspec.MsgspecError as error:
        raise CodecError(f"the description of object {name!r} is damaged: {error}") from error


def _digest_of(info: _Info) -> bytes:
    try:
        return base64.urlsafe_b64decode(info.digest.removeprefix(DIGEST))
    except binascii.Error as error:
        raise CodecError(f"the digest of object {info.name!r} is damaged") from error
