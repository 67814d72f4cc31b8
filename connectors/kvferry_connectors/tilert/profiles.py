"""What TileRT's decode servers expect of a model's KV, as data.

A layer's cache has two parts. Each token has a row: the latent vector, then the rotary part, which
the wire carries as two planes, ``kv`` and ``pe``. Models with a sparse indexer keep its keys in
pages of 64 tokens, which the wire carries as they are: plane ``ki``. A layout version, which both
sides must share, stands for model and cache dtype together.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvferry.errors import ConfigError

LATENT = 512
ROPE = 64
PAGE_TOKENS = 64
"""Tokens of an indexer page; an engine's blocks must be as long where there is an indexer."""
INDEX_PAGE_BYTES = PAGE_TOKENS * 128 + PAGE_TOKENS * 4
"""128 e4m3 values of each token, then one fp32 scale of each."""


class RowFormat(msgspec.Struct, frozen=True):
    """How one token's row of one layer is stored."""

    name: str
    kv_bytes: int
    """The latent part, in fp8 with an fp32 scale for each 128 values."""
    pe_bytes: int
    version_offset: int
    """Added to a profile's layout version."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in vLLM's cache."""
        return self.kv_bytes + self.pe_bytes


FP8_DS_MLA = RowFormat("fp8_ds_mla", LATENT + LATENT // 128 * 4, ROPE * 2, 0)
BF16 = RowFormat("bf16", LATENT * 2, ROPE * 2, 40)
FORMATS = {form.row_bytes: form for form in (FP8_DS_MLA, BF16)}
"""By bytes of a row, which is how the engine's dtype is recognised."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model."""

    name: str
    layers: int
    version: int
    """Layout version with an fp8_ds_mla cache."""
    indexer: bool = True
    """Whether there is a ``ki`` plane."""
    indexer_layers: tuple[int, ...] = ()
    """Layers that have indexer keys of their own, where not all have; the others use those of the
    last one before them, and the wire carries them again for each."""
    draft_layer: bool = False
    """The last layer is the drafter's, which needs not have an indexer of its own."""

    def layout_version(self, form: RowFormat) -> int:
        """The version that both sides must share."""
        return self.version + form.version_offset

    def token_bytes(self, form: RowFormat) -> float:
        """Bytes on the wire for each token, in a prompt of whole pages."""
        index = INDEX_PAGE_BYTES / PAGE_TOKENS if self.indexer else 0
        return self.layers * (form.row_bytes + index)


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(name="dsv32", layers=61, version=11),
        Profile(name="glm5", layers=79, version=10, draft_layer=True),
        Profile(name="glm5_no_mtp", layers=78, version=1010),
        Profile(
            name="glm5_2",
            layers=79,
            version=12,
            indexer_layers=(*(n for n in range(78) if max(n - 2, 0) % 4 == 0), 78),
            draft_layer=True,
        ),
    )
}
"""TileRT's models. ``glm5_no_mtp`` is what its servers serve when told ``TILERT_PD_NO_MTP``."""


def find(wanted: str | Mapping[str, object]) -> Profile:
    """A profile by its name, or one that the configuration spells out.

    Raises:
        ConfigError: naming what is wrong and what there is.
    """
    if isinstance(wanted, str):
        if wanted not in PROFILES:
            known = ", ".join(PROFILES)
            raise ConfigError(f"profile={wanted!r} is not known: take one of {known}")
        return PROFILES[wanted]
    try:
        profile = msgspec.convert(dict(wanted), Profile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"profile: {error}") from error
    listed = profile.indexer_layers
    if profile.layers < 1 or list(listed) != sorted(set(listed)) or (listed and listed[0] != 0):
        raise ConfigError(
            "profile: layers is 1 or more, indexer_layers is in order and begins with layer 0"
        )
    return profile
