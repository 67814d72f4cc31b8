"""Tags of salts: the same everywhere in a cluster, and nothing that gives a salt away."""

from __future__ import annotations

from kvferry_connectors.vllm import tenants
from kvferry_connectors.vllm.tenants import Tenants

KEY = b"k" * 32


def test_a_salt_has_the_same_tag_on_every_node_of_a_cluster_and_no_other() -> None:
    one, other = Tenants(KEY), Tenants(KEY)
    assert one.tag("acme") == other.tag("acme") == one.tag("acme")
    assert len({one.tag(salt) for salt in ("acme", "acme ", "Acme", "acm")}) == 4
    assert one.tag("acme") != Tenants(b"j" * 32).tag("acme"), "without the key nobody finds it"
    assert len(one.tag("acme")) == 2 * tenants.TAG_BYTES


def test_who_has_no_salt_has_no_tag() -> None:
    assert Tenants(KEY).tag(None) == Tenants(KEY).tag("") == ""


def test_however_many_salts_there_are_few_are_remembered() -> None:
    many = Tenants(KEY)
    first = many.tag("salt-0")
    for number in range(tenants.KNOWN_MAX + 5):
        many.tag(f"salt-{number}")
    assert len(many._known) == tenants.KNOWN_MAX
    assert many.tag("salt-0") == first
