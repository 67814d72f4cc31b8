"""Wrong options and missing libraries are named, with the cure."""

from __future__ import annotations

import builtins
import importlib.util
from collections.abc import Callable

import pytest
from tests.contract.pools import Pool
from tests.unit.nccl.conftest import Make
from tests.unit.nccl.host_device import HostDevice

from kvferry.errors import BackendError, BackendUnavailable, ConfigError
from kvferry_backends import registry
from kvferry_backends.nccl.backend import NcclBackend
from kvferry_backends.nccl.library import Nccl
from kvferry_backends.nccl.options import NcclOptions, parse_options


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"chunk": 1}, "unknown option chunk"),
        ({"slots": 1}, "slots 1 is not 2 to 16"),
        ({"slots": "many"}, r"\$.slots"),
        ({"communicators": 0}, "communicators 0 is not 1 to 64"),
        ({"chunk_bytes": 1}, "chunk_bytes 1 is not"),
        ({"max_ctas": 33}, "max_ctas 33 is not 0 to 32"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"listen_host": "localhost"}, "give an IP address"),
        ({"listen_host": "0.0.0.0"}, "set advertise"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_options(options)


def test_a_slot_holds_whole_blocks_and_at_least_one() -> None:
    assert parse_options({}) == NcclOptions()
    options = parse_options({"chunk_bytes": 65536})
    assert [options.slot_blocks(size) for size in (1, 65536, 65537, 40_000)] == [65536, 1, 1, 1]


def test_without_a_gpu_it_is_unavailable_by_name() -> None:
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            pytest.skip("this host has a GPU")
    with pytest.raises(BackendUnavailable, match="backend nccl needs"):
        registry.create("nccl")


def test_a_missing_binding_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., object] = builtins.__import__

    def missing(name: str, *rest: object) -> object:
        if name.startswith("nccl"):
            raise ImportError(f"No module named {name!r}")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(BackendUnavailable, match=r"install kvferry\[nccl\]"):
        Nccl()


def test_the_life_of_a_backend(make: Make) -> None:
    end = make(Pool(4, [64]))
    with pytest.raises(BackendError, match="has its regions"):
        end.backend.register(end.pool.regions, lambda transfer, grant, packed: True)
    with pytest.raises(BackendError, match="register"):
        NcclBackend({}, HostDevice).describe()
    peer = make(Pool(4, [64])).backend.describe()
    end.backend.close()
    end.backend.close()
    with pytest.raises(BackendError, match="closed"):
        end.post(peer, [0], [0])
