"""Whether NIXL is a good way to reach a peer."""

from __future__ import annotations

from pathlib import Path

from kvferry.errors import BackendError
from kvferry_backends.nixl.wire import PeerDescription

_RDMA_DEVICES = Path("/sys/class/infiniband")


def has_rdma() -> bool:
    """Whether this machine has a device for RDMA: InfiniBand, RoCE or EFA."""
    try:
        return any(_RDMA_DEVICES.iterdir())
    except OSError:
        return False


def check_reach(peer: PeerDescription, host: str, rdma: bool, *, allow_tcp: bool) -> None:
    """Refuse a peer that UCX could reach over TCP only.

    Raises:
        BackendError: it is on another host, and one of the two has no RDMA.
    """
    if peer.host == host or allow_tcp or (rdma and peer.rdma):
        return
    whose = "this host" if not rdma else "the peer's host"
    raise BackendError(
        f"{whose} has no RDMA device, and backend nixl is not used over TCP; "
        "use backend tcp, or set its option allow_tcp"
    )
