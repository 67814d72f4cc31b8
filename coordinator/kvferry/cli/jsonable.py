"""Anything of kvferry as plain JSON: hashes and other bytes in hex."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import typer


def jsonable(value: object) -> Any:
    """``value`` (structs, bytes, tuples, mappings) as what ``json`` can write."""
    return _hexed(msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True))


def _hexed(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: _hexed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hexed(item) for item in value]
    return value


def print_document(value: object) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(jsonable(value), indent=2, ensure_ascii=False))


def print_line(value: object) -> None:
    """One JSON document in one line on stdout, for streams of them."""
    typer.echo(json.dumps(jsonable(value), ensure_ascii=False, separators=(",", ":")))
