"""Misses that real engines make on purpose, one function a cause."""

import pytest

# Not test modules by name, but what they assert is to be explained like what those do.
pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("telling", "evicted", "refused", "failed"))
)
