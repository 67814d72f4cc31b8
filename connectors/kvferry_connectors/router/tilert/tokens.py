"""Token ids to text, token by token, as vLLM's own servers do it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvferry.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.decoders import DecodeStream

_FILE = "tokenizer.json"


def load_tokenizer(path: str) -> tuple[Tokenizer, Path]:
    """The tokenizer at ``path``, a file or a folder, and the folder that it lies in.

    Raises:
        ConfigError: it is not there, cannot be read, or the library is missing.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError(
            "TileRT nodes need the tokenizers library: pip install 'kvferry[tilert]'"
        ) from error
    given = Path(path)
    file = given / _FILE if given.is_dir() else given
    if not file.is_file():
        raise ConfigError(f"--tokenizer {path}: there is no {file}")
    try:
        return Tokenizer.from_file(str(file)), file.parent
    except Exception as error:  # The library raises this very class.
        raise ConfigError(f"--tokenizer {path}: {file} cannot be read: {error}") from error


class Detokenizer:
    """The text of one answer. Knows the prompt, for a text's spaces depend on what precedes."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._stream = self._begin(prompt)

    def push(self, ids: Sequence[int]) -> str:
        """What these tokens add; a character whose bytes are not all there yet comes later."""
        return "".join(self._step(one) for one in ids)

    def _step(self, token: int) -> str:
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except OverflowError:
            return ""  # No token of this model.
        except Exception as error:  # The library raises this very class.
            if "Invalid prefix" not in str(error):
                raise
            # A tokenizer whose text of more tokens does not begin with the text of fewer.
            self._stream = self._begin(())
            return self._stream.step(self._tokenizer, token) or ""

    def _begin(self, prompt: Sequence[int]) -> DecodeStream:
        from tokenizers.decoders import DecodeStream

        return DecodeStream(ids=list(prompt), skip_special_tokens=self._skip_special)
