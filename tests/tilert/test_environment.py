"""The contract tests run against the package as it is published."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import socket
import struct

import httpx
from tests.tilert.nodes import StartNode

from kvferry_connectors.demo.tilert.package import package

VERSION = "0.1.6.post3"


def test_the_stub_server_answers_and_no_file_of_the_package_is_edited(
    decode_node: StartNode,
) -> None:
    node = decode_node()
    assert httpx.get(f"{node.url}/health", timeout=60.0, trust_env=False).json() == {"status": "ok"}
    told = httpx.get(f"{node.url}/capabilities", timeout=60.0, trust_env=False).json()
    assert (told["profile"], told["engine"]) == ("dsv32", "StubEngine")
    assert node.status() == {"status": "idle", "current_rid": None}
    with socket.create_connection(("127.0.0.1", node.ctrl_port), timeout=10) as control:
        stream = control.makefile("rb")
        (length,) = struct.unpack("!I", stream.read(4))
        hello = json.loads(stream.read(length))
    assert (hello["magic"], hello["protocol_version"]) == ("tilert-pd", 2)
    assert (hello["layout_version"], hello["senders"]) == (11, 8)
    assert changed_files() == []


def test_a_spy_engine_stands_behind_the_same_server(decode_node: StartNode) -> None:
    node = decode_node(model="glm5", dtype="bfloat16", spy={"tokens": [1, 2, 3]})
    told = httpx.get(f"{node.url}/capabilities", timeout=60.0, trust_env=False).json()
    assert told["engine"] == "SpyEngine"
    assert told["capabilities"] == {"penalties": False, "ignore_eos": True, "logprobs": False}


def changed_files() -> list[str]:
    """Files of the unpacked package that are not what its own record says."""
    where = package()
    assert where is not None
    (record,) = where.glob(f"tilert-{VERSION}.dist-info/RECORD")
    changed = []
    checked = 0
    for name, digest, _ in csv.reader(record.read_text().splitlines()):
        if not digest:
            continue
        content = (where / name).read_bytes()
        made = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        checked += 1
        if digest != f"sha256={made}":
            changed.append(name)
    assert checked > 50
    return changed
