"""What the router has to know of the model that TileRT nodes decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvferry_connectors.router.tilert.sampling import read_defaults
from kvferry_connectors.router.tilert.tokens import load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Model:
    """``defaults``: how it samples where a request does not say."""

    tokenizer: Tokenizer
    defaults: dict[str, float]


def read_model(path: str) -> Model:
    """From a ``tokenizer.json``, or its folder, and the files beside it.

    Raises:
        ConfigError: a file is missing or cannot be read, or the library is missing.
    """
    tokenizer, folder = load_tokenizer(path)
    return Model(tokenizer, read_defaults(folder))
