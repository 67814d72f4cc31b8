"""Finds backends by name through the entry-point group ``kvferry.backends``, and what writes into
foreign memory through ``kvferry.writers``.

A backend's module is imported only when somebody asks for it by name, so that an engine
never pays for a library that it does not use.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from kvferry.errors import BackendUnavailable, ConfigError
from kvferry.ports.backend import Backend
from kvferry.ports.remote_writer import RemoteWriter

GROUP = "kvferry.backends"
WRITERS = "kvferry.writers"
LISTENING = frozenset({"tcp", "nixl", "nccl"})
"""Backends that peers connect to, and that take the address for it as ``listen_host``."""

_log = logging.getLogger("kvferry.backends")


def names() -> tuple[str, ...]:
    """All installed backends, in alphabetical order. Imports none of them."""
    return tuple(sorted(_entries(GROUP)))


def create(name: str, options: Mapping[str, object] | None = None) -> Backend:
    """The backend called ``name``, made with ``options``.

    Raises:
        ConfigError: no backend has this name, or an option is wrong.
        BackendUnavailable: it is installed but cannot work here.
    """
    backend: Backend = _load(GROUP, "backend", name)(dict(options or {}))
    return backend


def create_writer(name: str, options: Mapping[str, object] | None = None) -> RemoteWriter:
    """The writer called ``name``, made with ``options``.

    Raises:
        ConfigError: no writer has this name, or an option is wrong.
        BackendUnavailable: it is installed but cannot work here.
    """
    writer: RemoteWriter = _load(WRITERS, "writer", name)(dict(options or {}))
    return writer


def create_usable(
    order: Sequence[str],
    options_by_name: Mapping[str, Mapping[str, object]] | None = None,
    *,
    left_out: dict[str, str] | None = None,
) -> list[Backend]:
    """Every backend of ``order`` that works here, in that order; may be empty.

    A backend that cannot work here is left out; the reason is logged and goes into
    ``left_out`` under its name. Wrong names and options are the caller's mistakes and raise;
    backends made before the mistake are closed.

    Raises:
        ConfigError: an unknown or repeated name, options for a name that ``order`` lacks, or a
            wrong option.
    """
    options = dict(options_by_name or {})
    _check_order(order, options)
    usable: list[Backend] = []
    try:
        for name in order:
            try:
                usable.append(create(name, options.get(name)))
            except BackendUnavailable as error:
                _log.info("backend %s is left out: %s", name, error)
                if left_out is not None:
                    left_out[name] = str(error)
    except BaseException:
        for backend in usable:
            backend.close()
        raise
    return usable


def _check_order(order: Sequence[str], options: Mapping[str, object]) -> None:
    if len(set(order)) != len(order):
        raise ConfigError(f"a backend is listed twice in {', '.join(order)}; list each once")
    idle = sorted(set(options) - set(order))
    if idle:
        raise ConfigError(
            f"there are options for {', '.join(idle)}, which the list of backends "
            f"({', '.join(order) or 'empty'}) does not name; add the name or drop the options"
        )


def _load(group: str, noun: str, name: str) -> Any:
    """The factory that the group holds under ``name``."""
    entries = _entries(group)
    entry = entries.get(name)
    if entry is None:
        known = ", ".join(sorted(entries)) or "none"
        raise ConfigError(f"no {noun} is called {name!r}; installed are: {known}")
    try:
        return entry.load()
    except ImportError as error:
        raise BackendUnavailable(
            f"{noun} {name!r} needs a library that is missing here ({error}); "
            f"install it, or take {name!r} out of the configuration"
        ) from error
    except AttributeError as error:
        raise BackendUnavailable(
            f"{noun} {name!r} is declared as {entry.value!r}, which does not exist; "
            "reinstall the package that provides it"
        ) from error


def _entries(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}
