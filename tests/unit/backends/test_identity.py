"""Whether another process lives, told from one that took its pid or waits to be reaped."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import msgspec

from kvferry_backends.identity import Identity, lives, own_identity, started_at

WAIT_S = 20.0


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def identity_of(pid: int) -> Identity:
    started = started_at(pid)
    assert started is not None
    return msgspec.structs.replace(own_identity(), pid=pid, started=started)


def test_a_process_lives_until_it_is_killed_even_if_nobody_has_reaped_it() -> None:
    ours = own_identity()
    with sleeper() as process:
        theirs = identity_of(process.pid)
        assert lives(theirs, ours) is True
        process.kill()
        until = time.monotonic() + WAIT_S
        while lives(theirs, ours) and time.monotonic() < until:
            time.sleep(0.01)
        # Not waited for: the kernel still lists it, as a zombie.
        assert os.path.exists(f"/proc/{process.pid}")
        assert lives(theirs, ours) is False
    assert lives(theirs, ours) is False


def test_another_process_with_the_same_pid_is_another_one() -> None:
    ours = own_identity()
    assert lives(ours, ours) is True
    assert lives(msgspec.structs.replace(ours, started=ours.started - 1), ours) is False


def test_what_cannot_be_seen_is_not_called_dead() -> None:
    ours = own_identity()
    elsewhere = msgspec.structs.replace(ours, namespace="pid:[1]", pid=2**22 + 1)
    assert lives(elsewhere, ours) is None
    assert lives(msgspec.structs.replace(ours, host="another"), ours) is None
    # The control: the same pid in our own namespace belongs to nobody.
    assert lives(msgspec.structs.replace(elsewhere, namespace=ours.namespace), ours) is False
