"""Finds NIXL under the names that its wheels have."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from types import ModuleType
from typing import Any

from kvferry.errors import BackendUnavailable

PACKAGES = ("nixl", "nixl_cu13", "nixl_cu12")
"""The first that can be imported is taken. ``nixl`` itself picks one of the others."""

_log = logging.getLogger("kvferry.backends.nixl")
_lock = threading.Lock()
_found: Library | None = None


class Library:
    """The parts of NIXL's Python package that are used here."""

    def __init__(self, package: str, api: ModuleType, bindings: ModuleType) -> None:
        self.package = package
        self.agent: Any = api.nixl_agent
        self.config: Any = api.nixl_agent_config
        self.disconnected: Any = bindings.nixlRemoteDisconnectError
        # It tells of every agent on standard output, which may be somebody's data.
        if "NIXL_LOG_LEVEL" not in os.environ:
            api.logger.setLevel(logging.WARNING)


def find(packages: tuple[str, ...] = PACKAGES) -> Library:
    """NIXL, imported once in a process.

    Raises:
        BackendUnavailable: no package of it is installed, or none can be imported; says why.
    """
    global _found
    with _lock:
        if _found is not None and packages == PACKAGES:
            return _found
        library = _import(packages)
        if packages == PACKAGES:
            _found = library
        return library


def _import(packages: tuple[str, ...]) -> Library:
    reasons = []
    for package in packages:
        try:
            api = importlib.import_module(f"{package}._api")
            bindings = importlib.import_module(f"{package}._bindings")
            library = Library(package, api, bindings)
        except (ImportError, OSError, AttributeError) as error:
            reasons.append(f"{package}: {error}")
            continue
        _log.debug("NIXL is package %s", package)
        return library
    raise BackendUnavailable(
        f"backend nixl needs NIXL ({'; '.join(reasons)}); install kvferry[nixl], which brings "
        "nixl-cu12, or nixl-cu13 for CUDA 13"
    )
