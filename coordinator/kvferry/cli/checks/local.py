"""This machine: the cluster key's file, and whether the peers can be reached from here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from kvferry.cli.checks.finding import Finding, fail, ok
from kvferry.node.peers.keys import KEY_FILE_ENV, default_key_path

DIAL_S = 2.0


def key_file(env: Mapping[str, str] = os.environ) -> Path:
    """Where this user's engines look for the cluster key."""
    named = env.get(KEY_FILE_ENV)
    return Path(named).expanduser() if named else default_key_path(env)


def check_key(path: Path) -> Finding:
    """Only its owner may read the key: whoever has it may read KV."""
    check = "key file"
    try:
        found = path.stat()
    except FileNotFoundError:
        return ok(check, f"{path} does not exist; the first engine here creates it")
    except OSError as error:
        return fail(check, f"{path}: {error.strerror}", "make it readable for its owner")
    if not stat.S_ISREG(found.st_mode):
        return fail(check, f"{path} is no regular file", "point KVFERRY_KEY_FILE at the key")
    if found.st_mode & 0o077:
        return fail(
            check,
            f"{path} can be read by others (mode {stat.S_IMODE(found.st_mode):04o}); "
            "engines refuse it",
            f"chmod 600 {path}",
        )
    return ok(check, f"{path} is readable for its owner only")


async def check_peers(addresses: Iterable[tuple[str, str]]) -> list[Finding]:
    """A TCP connection to each (node, ``host:port``)."""
    return list(await asyncio.gather(*(_dial(node, address) for node, address in addresses)))


async def _dial(node: str, address: str) -> Finding:
    check = f"peer {node}"
    host, _, port = address.rpartition(":")
    cure = "see that the engine runs and that its advertised host and port can be reached from here"
    if not host or not port.isdigit():
        return fail(check, f"its address {address!r} is not host:port", cure)
    try:
        async with asyncio.timeout(DIAL_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return fail(check, f"{address} does not answer within {DIAL_S:.0f} s", cure)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        return fail(check, f"{address}: {reason}", cure)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ok(check, f"{address} answers")
