"""The last few keys of many."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")


class Recent(Generic[Key]):
    """A set that forgets what was added first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: dict[Key, None] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def add(self, key: Key) -> None:
        self._keys[key] = None
        if len(self._keys) > self._most:
            del self._keys[next(iter(self._keys))]
