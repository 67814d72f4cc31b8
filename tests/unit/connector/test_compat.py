"""What the connector needs of vLLM is asked for at start and refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.core.block_pool import BlockPool

from kvferry.errors import ConfigError, EngineUnsupported
from kvferry_connectors.vllm import compat
from kvferry_connectors.vllm.connector import KVFerryConnector
from kvferry_connectors.vllm.metadata import RankHello


@pytest.mark.parametrize("version", ["0.31.9", "0.9.2", "0.31.0rc1+cpu", "0.20.2"])
def test_an_old_vllm_is_refused_by_name(version: str) -> None:
    with pytest.raises(EngineUnsupported) as caught:
        compat.check_version(version)
    assert f"vLLM {version} is too old" in str(caught.value)
    assert "0.32 or newer" in str(caught.value)


@pytest.mark.parametrize("version", ["0.32.0", "0.33.1", "1.0.0", "0.32.1.dev7+g12ab", "dev", ""])
def test_a_new_or_unnumbered_vllm_is_taken(version: str) -> None:
    compat.check_version(version)


def test_the_connector_itself_refuses_an_old_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.31.2")
    with pytest.raises(EngineUnsupported, match=r"vLLM 0\.31\.2 is too old"):
        KVFerryConnector(config("kv_both"), KVConnectorRole.WORKER, None)


def config(role: str, **options: Any) -> SimpleNamespace:
    """As much of vLLM's configuration as the constructor reads."""
    transfer = SimpleNamespace(
        kv_role=role, kv_connector_extra_config=options, kv_load_failure_policy="fail"
    )
    parallel = SimpleNamespace(rank=0, world_size=1)
    return SimpleNamespace(kv_transfer_config=transfer, parallel_config=parallel)


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer"])
def test_another_role_is_refused_by_name(role: str) -> None:
    with pytest.raises(ConfigError, match=f"kv_role='{role}': kvferry needs kv_both"):
        KVFerryConnector(config(role), KVConnectorRole.WORKER, None)


def test_wrong_options_are_refused_by_the_constructor() -> None:
    with pytest.raises(ConfigError, match="unknown option 'verfy'; did you mean 'verify'"):
        KVFerryConnector(config("kv_both", verfy="full"), KVConnectorRole.WORKER, None)


def test_alone_failed_loads_are_recomputed() -> None:
    alone = config("kv_both")
    connector = KVFerryConnector(alone, KVConnectorRole.WORKER, None)
    assert alone.kv_transfer_config.kv_load_failure_policy == "recompute"
    assert connector.get_handshake_metadata() is None  # Nothing is registered yet.
    connector.shutdown()


def test_under_multi_connector_the_policy_stays_as_it_is() -> None:
    class MultiConnector:
        """Has the name by which a child knows its parent."""

        def __init__(self, given: Any) -> None:
            self.child = KVFerryConnector(given, KVConnectorRole.WORKER, None)

    given = config("kv_both")
    parent = MultiConnector(given)
    assert given.kv_transfer_config.kv_load_failure_policy == "fail"
    assert parent.child.get_handshake_metadata() is None
    parent.child.shutdown()


OURS = {"kv_connector_module_path": "kvferry_connectors.tilert.connector"}
OTHER = {"kv_connector": "NixlConnector"}


@pytest.mark.parametrize(
    ("children", "early"), [([OURS, OURS], True), ([OURS, OTHER], False), ([], False)]
)
def test_ranks_say_who_they_are_before_the_first_step_where_no_other_connector_would_hear_it(
    children: list[dict[str, str]], early: bool
) -> None:
    class MultiConnector:
        def __init__(self) -> None:
            extra = {"connectors": children}
            self._kv_transfer_config = SimpleNamespace(kv_connector_extra_config=extra)
            self.child = KVFerryConnector(config("kv_both"), KVConnectorRole.WORKER, None)

    child = MultiConnector().child
    assert child._worker is not None
    child._worker.hello = hello = RankHello(0, 1, b"", {}, {}, {}, 1)
    child._worker._say_hello = True
    try:
        handshake, meta = child.get_handshake_metadata(), child.build_connector_worker_meta()
        assert (handshake is not None and handshake.hello is hello) == early
        assert (meta is not None and meta.hellos == [hello]) == (not early)
    finally:
        child.shutdown()


def test_the_real_block_pool_has_what_is_needed() -> None:
    compat.check_block_pool(BlockPool(4, True, 32))


@pytest.mark.parametrize("missing", ["unpin_blocks", "touch", "blocks"])
def test_a_block_pool_without_soft_leases_is_refused_by_name(missing: str) -> None:
    names = list(compat.POOL_NEEDS)
    pool = SimpleNamespace(**{name: None for name in names if name != missing})
    with pytest.raises(EngineUnsupported, match=f"BlockPool has no '{missing}'"):
        compat.check_block_pool(pool)


def groups(*specs: Any) -> SimpleNamespace:
    made = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
    return SimpleNamespace(kv_cache_groups=made)


class FullAttentionSpec:
    kv_cache_specs: Any = None


class MambaSpec:
    kv_cache_specs: Any = None


class UniformTypeKVCacheSpecs:
    def __init__(self, *specs: Any) -> None:
        self.kv_cache_specs = {str(i): spec for i, spec in enumerate(specs)}


def test_models_that_cannot_be_shared_yet_are_named() -> None:
    check = compat.one_full_attention_group
    assert check(groups(FullAttentionSpec())) == ""
    assert check(groups(UniformTypeKVCacheSpecs(FullAttentionSpec(), FullAttentionSpec()))) == ""
    assert "2 KV cache groups" in check(groups(FullAttentionSpec(), FullAttentionSpec()))
    assert "0 KV cache groups" in check(groups())
    assert "of kind MambaSpec" in check(groups(MambaSpec()))
    assert "of kind MambaSpec" in check(
        groups(UniformTypeKVCacheSpecs(FullAttentionSpec(), MambaSpec()))
    )
