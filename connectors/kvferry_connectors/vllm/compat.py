"""What the connector needs of vLLM, found out at start and refused by name."""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

from kvferry.errors import EngineUnsupported

OURS = "kvferry_connectors."
"""Our connectors' modules begin with this."""
MINIMUM = (0, 32)
EXPORTS_ONLY = (
    "under MultiConnector kvferry only exports, for it cannot see whether failed loads are "
    "recomputed; set kv_load_failure_policy=recompute at the top level and "
    "parent_load_failure_policy=recompute in kvferry's own extra config"
)
"""A warning of a node, shown by ``status``."""


def check_version(version: str) -> None:
    """Refuse vLLM older than 0.32.

    Raises:
        EngineUnsupported: naming the version found and the one needed.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        return  # A source build without a version: the capability checks below decide.
    if (int(found[1]), int(found[2])) < MINIMUM:
        raise EngineUnsupported(
            f"vLLM {version} is too old for kvferry: install vLLM "
            f"{MINIMUM[0]}.{MINIMUM[1]} or newer"
        )


POOL_NEEDS = (
    "unpin_blocks",
    "touch",
    "free_blocks",
    "get_num_free_blocks",
    "get_cached_block",
    "blocks",
)


def check_block_pool(pool: Any) -> None:
    """The engine's block pool must have soft leases.

    Raises:
        EngineUnsupported: naming what is missing.
    """
    for name in POOL_NEEDS:
        if not hasattr(pool, name):
            raise EngineUnsupported(
                f"this vLLM's BlockPool has no {name!r}: use vLLM 0.32 or newer"
            )


def one_full_attention_group(kv_cache_config: Any) -> str:
    """Why this model's cache cannot be shared yet; empty when it can."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return (
            f"the model has {len(groups)} KV cache groups; kvferry shares models with exactly one"
        )
    spec = groups[0].kv_cache_spec
    specs = getattr(spec, "kv_cache_specs", None)
    kinds = {type(s).__name__ for s in (specs.values() if specs else (spec,))}
    unknown = kinds - {"FullAttentionSpec", "MLAAttentionSpec"}
    if unknown:
        return f"the model's cache is of kind {', '.join(sorted(unknown))}, not full attention"
    return ""


def under_multi_connector() -> bool:
    """Whether ``MultiConnector`` is constructing us.

    vLLM shows a child no trace of its parent's configuration, and a child's failure policy is
    ignored, so the constructor's callers are the only place where the parent can be seen.
    """
    return _parent() is not None


def among_ours_alone() -> bool:
    """Whether ``MultiConnector`` is constructing us, and every child that it is to have is one of
    kvferry's. Where that cannot be seen, no."""
    transfer = getattr(_parent(), "_kv_transfer_config", None)
    given = getattr(transfer, "kv_connector_extra_config", None) or {}
    children = given.get("connectors") or ()
    paths = [str(child.get("kv_connector_module_path")) for child in children]
    return bool(paths) and all(path.startswith(OURS) for path in paths)


def _parent() -> Any:
    """The ``MultiConnector`` that is constructing us; None without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if owner is not None and type(owner).__name__ == "MultiConnector":
            return owner
        frame = frame.f_back
    return None
