"""A coordinator's process uses uvloop where it is installed, and asyncio's own loop elsewhere."""

from __future__ import annotations

import asyncio
import sys

import pytest

from kvferry.daemon.serving import run_serving


async def module_of_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_uvloop_is_used_where_it_is_installed() -> None:
    pytest.importorskip("uvloop", reason="pip install 'kvferry[fast]'")
    assert run_serving(module_of_loop()).partition(".")[0] == "uvloop"


def test_without_uvloop_asyncio_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run_serving(module_of_loop()).partition(".")[0] == "asyncio"


def test_errors_come_through() -> None:
    async def fail() -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        run_serving(fail())
