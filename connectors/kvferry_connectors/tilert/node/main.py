"""Runs TileRT's own decode server with its engine wrapped."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kvferry.errors import ConfigError
from kvferry.node.peers.keys import load_key
from kvferry_connectors.tilert.node.engine import KeepingEngine
from kvferry_connectors.tilert.node.keeper import Keeper
from kvferry_connectors.tilert.node.membership import Membership
from kvferry_connectors.tilert.node.settings import NodeOptions
from kvferry_connectors.vllm.planes import check_planes

log = logging.getLogger("kvferry.tilert.node")

_CURE = (
    "install it there and start this command there: pip install tilert, and 'kvferry[tilert]' "
    "beside it"
)


def serve(options: NodeOptions, engine: str, arguments: Sequence[str]) -> None:
    """Serve until TileRT's server ends.

    Args:
        engine: a name that TileRT's server knows, or ``module:factory`` of another engine.
        arguments: of ``tilert.pd_vllm.decode_server``.

    Raises:
        ConfigError: an option cannot be used, or TileRT is not there.
    """
    key = load_key(options.key or None)
    check_planes(options.planes(), "host")
    make = _factory(engine) if ":" in engine else None
    try:
        from tilert.pd_vllm import decode_server
    except ImportError as error:
        raise ConfigError(f"TileRT's decode server cannot be loaded ({error}); {_CURE}") from error
    membership = Membership(options, key)
    keeper = Keeper(membership, key, within_ms=options.within_ms)
    build_app = decode_server.build_app

    def build_keeping_app(server: Any, theirs: Any) -> Any:
        return build_app(server, KeepingEngine(make() if make else theirs, server, keeper))

    arguments_before = sys.argv
    sys.argv = ["decode_server", "--engine", "stub" if make else engine, *arguments]
    # The one place where its main takes an engine; nothing of the package is edited.
    decode_server.build_app = build_keeping_app
    try:
        decode_server.main()
    finally:
        decode_server.build_app = build_app
        sys.argv = arguments_before
        keeper.close()
        membership.close()


def _factory(engine: str) -> Callable[[], Any]:
    module, _, name = engine.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"--engine {engine!r} cannot be loaded ({error}): write MODULE:FACTORY, as "
            "my.engines:make"
        ) from error
    if not callable(found):
        raise ConfigError(f"--engine {engine!r} is no function: it is called for the engine")
    made: Callable[[], Any] = found
    return made
