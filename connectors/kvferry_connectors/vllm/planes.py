"""The data planes of one rank: which are started, for its KV cache and for its host tier."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kvferry.errors import BackendError, BackendUnavailable, ConfigError
from kvferry.ports.backend import Authorize, Backend, Regions
from kvferry_backends.registry import LISTENING, create, create_usable, names
from kvferry_connectors.vllm.options import Options

log = logging.getLogger("kvferry.vllm")

BY_MEMORY = {"host": ("peer_host", "tcp"), "cuda": ("peer",)}
"""What is offered where the options name no backend; which of them a pair uses, it measures.
``nixl`` and ``nccl`` have to be named: each takes device memory, and that a source killed on the
same host is let go by what ``nixl`` now tells UCX has still to be measured."""


def start_planes(
    options: Options, regions: Regions, authorize: Authorize
) -> tuple[list[Backend], dict[str, str]]:
    """Those that serve reads of ``regions`` from now on, and why others do not, by name.

    Raises:
        ConfigError: an option names a backend or a setting that does not exist, or is of a
            backend that is not to be started.
    """
    chosen = _chosen(options, regions.kind)
    absent: dict[str, str] = {}
    refused: dict[str, str] = {}
    kept = []
    for backend in create_usable(chosen, _named(options, chosen), left_out=absent):
        if regions.kind not in backend.capabilities.memory:
            absent[backend.name] = f"it cannot read {regions.kind} memory"
            backend.close()
            continue
        why = _register(backend, regions, authorize)
        if why:
            refused[backend.name] = why
        else:
            kept.append(backend)
    if kept and not options.backends:
        absent.clear()  # Nobody asked for them by name, so nobody needs to hear.
    return kept, {**absent, **refused}


def check_planes(options: Options, kind: str) -> None:
    """Find what is wrong with the options before there is any memory of this kind to serve.

    Raises:
        ConfigError: an option names a backend or a setting that does not exist, is of a backend
            that is not to be started, or no backend works here.
    """
    chosen = _chosen(options, kind)
    absent: dict[str, str] = {}
    usable = create_usable(chosen, _named(options, chosen), left_out=absent)
    for backend in usable:
        backend.close()
    if not usable:
        raise ConfigError(f"no data plane works here: {absent}; name others with backends")


def start_host_planes(
    options: Options, engine: Sequence[Backend], pool: Regions, authorize: Authorize
) -> list[Backend]:
    """A second one of each of the engine's own that can move host memory, for its host tier.

    The others cannot bring blocks of a host tier to a peer: such blocks are for this node alone.
    """
    kept = []
    for name in [b.name for b in engine if pool.kind in b.capabilities.memory]:
        given = _options_of(options, name)
        if given.get("listen_port") or given.get("advertise"):
            log.warning(
                "data plane %s does not serve the host tier: its one listen_port is the KV "
                "cache's; leave listen_port and advertise out to have both served",
                name,
            )
            continue
        try:
            backend = create(name, given)
        except (BackendUnavailable, ConfigError) as error:
            log.warning("data plane %s does not serve the host tier: %s", name, error)
            continue
        if not _register(backend, pool, authorize):
            kept.append(backend)
    return kept


def _chosen(options: Options, kind: str) -> tuple[str, ...]:
    return options.backends or tuple(name for name in BY_MEMORY[kind] if name in names())


def _named(options: Options, chosen: Sequence[str]) -> dict[str, dict[str, object]]:
    """All that is given, also for backends that are not chosen: they must not go unheard."""
    return {name: _options_of(options, name) for name in (*chosen, *options.backend_options)}


def _options_of(options: Options, name: str) -> dict[str, object]:
    given: dict[str, object] = dict(options.backend_options.get(name, {}))
    if name in LISTENING:
        given.setdefault("listen_host", options.host)
    return given


def _register(backend: Backend, regions: Regions, authorize: Authorize) -> str:
    """Why the backend cannot serve these; then it is closed. Empty when it does."""
    try:
        backend.register(regions, authorize)
    except BackendError as error:
        log.warning("data plane %s is left out: %s", backend.name, error)
        backend.close()
        return str(error)
    return ""
