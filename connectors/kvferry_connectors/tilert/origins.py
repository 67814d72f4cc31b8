"""What prefill tells a decode node of each prompt: made on the scheduler's side.

Only where the engine is a node of a space, which is ``KVFerryConnector``'s doing: without it there
is nobody to pull what a decode node would keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.fitting import Fit
from kvferry_connectors.tilert.origin import (
    INDEX,
    KEY,
    ROWS,
    VALID_MS,
    Origin,
    Page,
    signed,
    unsaid,
)
from kvferry_connectors.vllm import neighbours
from kvferry_connectors.vllm.neighbours import SpaceFacts
from kvferry_connectors.vllm.tracked import read_params

_MLA = "MLAAttentionSpec"


def pages_of(fitted: Fit, kv_cache_config: Any) -> tuple[Page, ...]:
    """A block's pages in the order in which nodes of the space have them; none where a decode node
    could not make them."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return ()
    rows = {cache.name: layer for layer, cache in enumerate(fitted.rows)}
    index: dict[str, int] = {}
    for layer, cache in enumerate(fitted.index):
        index.setdefault(cache.name, layer)  # Layers without keys of their own use another's.
    sizes = {cache.name: cache.block_bytes for cache in (*fitted.rows, *fitted.index)}
    found = []
    for name in groups[0].layer_names:
        if name not in sizes:
            return ()
        kind, layer = (ROWS, rows[name]) if name in rows else (INDEX, index[name])
        found.append(Page(kind, layer, sizes[name]))
    return tuple(found)


def is_latent(kv_cache_config: Any) -> bool:
    """Whether the engine's caches are of latent attention: of others rows are no tokens' rows."""
    for group in kv_cache_config.kv_cache_groups:
        specs = getattr(group.kv_cache_spec, "kv_cache_specs", None) or {"": group.kv_cache_spec}
        if any(type(spec).__name__ != _MLA for spec in specs.values()):
            return False
    return True


class Origins:
    """Tells origins of one engine's prompts. On the engine's thread, for claimed requests only."""

    def __init__(
        self, fitted: Fit, pages: tuple[Page, ...], facts: Callable[[], SpaceFacts | None]
    ) -> None:
        """``facts`` tells of the engine's space, once it is in one."""
        self._fitted = fitted
        self._pages = pages
        self._facts = facts

    def sampling(
        self, given: Mapping[str, Any] | None, request: Any, rid: str
    ) -> tuple[dict[str, Any], str]:
        """What the mark wants to be passed on, with the prompt's origin beside it; and why there is
        none, empty where there is one."""
        facts = self._facts()
        why = self._why_not(request, facts)
        told = unsaid(why) if facts is None or why else self._signed(request, rid, facts)
        return {**(given or {}), KEY: told}, why

    def _why_not(self, request: Any, facts: SpaceFacts | None) -> str:
        if facts is None:
            return "the engine is in no space yet"
        if not self._pages or sum(page.bytes for page in self._pages) != facts.block_bytes:
            return "the engine's blocks are not made of the profile's rows alone"
        if facts.block_tokens != self._fitted.block_tokens:
            return "the engine's blocks are not the profile's"
        if request.lora_request or request.mm_features:
            return "hashes of prompts with LoRA or media name more than tokens"
        if getattr(request, "prompt_embeds", None) is not None:
            return "the prompt is given as embeddings"
        salted = bool(getattr(request, "cache_salt", None))
        if salted and facts.algorithm == "sha256":
            return "hashes of salted prompts are not reproducible: use sha256_cbor"
        if salted and request.num_prompt_tokens < facts.block_tokens:
            return "the first block, whose hash has the cache_salt, is not full"
        return ""

    def _signed(self, request: Any, rid: str, facts: SpaceFacts) -> dict[str, str]:
        tokens, size = int(request.num_prompt_tokens), facts.block_tokens
        full = tokens // size
        params = read_params(request.kv_transfer_params)
        origin = Origin(
            rid=rid,
            tokens=tokens,
            tail=tuple(request.prompt_token_ids[full * size : tokens]),
            hashes=b"".join(request.block_hashes[:full]),
            space=facts.space,
            components=facts.components,
            block_tokens=size,
            ranks=facts.ranks,
            algorithm=facts.algorithm,
            root=facts.root,
            profile=self._fitted.profile,
            form=self._fitted.form.name,
            pages=self._pages,
            session=params.session,
            external_id=params.id,
            last_turn=params.end,
            retain_ms=params.retain_ms,
            expires_ms=time.time_ns() // 1_000_000 + VALID_MS,
        )
        return signed(origin, facts.key)


def open_origins(
    fitted: Fit | SendRefused, kv_cache_config: Any, vllm_config: Any
) -> Origins | None:
    """For an engine that is a node of the ledger; None for others."""
    if isinstance(fitted, SendRefused) or neighbours.outbox_of(vllm_config) is None:
        return None
    pages = pages_of(fitted, kv_cache_config) if is_latent(kv_cache_config) else ()
    return Origins(fitted, pages, lambda: neighbours.space_of(vllm_config))
