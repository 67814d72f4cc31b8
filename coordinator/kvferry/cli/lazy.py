"""Groups of commands that are listed without being imported.

A command's module brings all that the command works with: NATS, tables, the coordinator. Whoever
asks for help, completes a name or runs another command should not wait for that. So a group knows
its commands by :class:`Entry`, and imports the one that is called for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from kvferry.errors import ConfigError


class Entry(NamedTuple):
    """A command before it is imported."""

    name: str
    target: str
    """``module:attribute`` of a function with Typer's annotations, or of a Typer application."""
    summary: str = ""
    """What the listing says of it; without one the listing imports the command."""
    panel: str | None = None
    """The heading under which the listing has it."""


class Deferred(TyperCommand):
    """What a listing shows of an entry."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.name, help=entry.summary, rich_help_panel=entry.panel)
        self.target = entry.target


class LazyGroup(TyperGroup):
    """A group whose commands are those of :meth:`entries`; the one that is run is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for entry in self.entries():
            self.add_command(Deferred(entry))

    def entries(self) -> Iterable[Entry]:
        """The commands in the order of the listing."""
        return ()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What the listing shows of a command; None where there is none of that name."""
        command = super().get_command(ctx, cmd_name)
        if isinstance(command, Deferred) and not command.help:
            return _load(ctx, command)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command to run or to explain, with its name and its arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, Deferred):
            command = _load(ctx, command)
        return name, command, rest


def application(found: typer.Typer | Callable[..., None], name: str | None = None) -> typer.Typer:
    """The Typer application of what an entry's target is."""
    if isinstance(found, typer.Typer):
        return found
    made = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    made.command(name)(found)
    return made


def _load(ctx: Any, command: Deferred) -> Any:
    """The command itself; one that cannot be imported says so when it is run."""
    module, _, attribute = command.target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        found = _missing(f"{ctx.command_path} {command.name}", error)
    return typer.main.get_command(application(found, command.name))


def _missing(path: str, error: ImportError) -> Callable[[], None]:
    # Only here, as the guard brings asyncio, for which no listing shall pay.
    from kvferry.cli import guard

    @guard.guarded
    def command() -> None:
        raise ConfigError(f"`{path}` needs what is not installed here ({error}); install it")

    command.__doc__ = f"Needs what is not installed here: {error}"
    return command
