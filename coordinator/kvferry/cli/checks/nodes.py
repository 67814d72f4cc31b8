"""The engines: who joined, who is silent, what keeps them from sharing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations

from kvferry.cli.checks.finding import Finding, fail, ok, warn
from kvferry.core.state import CLOSED, JOINED, LEFT, NodeState, State
from kvferry.ids import ROUTER_SPACE

COMPONENT_CURES = {
    "model": "serve the same weights and revision on both, or name them alike with model_id",
    "dtype": "give both engines the same --dtype",
    "kv_cache_dtype": "give both engines the same --kv-cache-dtype",
    "quantization": "give both engines the same --quantization",
    "block_size": "give both engines the same --block-size",
    "tensor_parallel": "give both engines the same --tensor-parallel-size",
    "pipeline_parallel": "give both engines the same --pipeline-parallel-size",
    "context_parallel": "give both engines the same --decode-context-parallel-size",
    "rope": "give both engines the same rope overrides and --max-model-len overrides",
    "drafter": "give both engines the same --speculative-config",
    "hash_scheme": "give both engines the same --prefix-caching-hash-algo (sha256_cbor is "
    "reproducible) and the same PYTHONHASHSEED, or none",
    "layout": "give both engines the same KV cache layout (VLLM_KV_CACHE_LAYOUT) and block size",
    "attention": "give both engines the same --attention-backend",
    "isa": "run both on CPUs with the same instruction set: vLLM packs KV by it",
}
OTHER_CURE = "start both engines with the same options and the same vLLM version"


def engines(state: State) -> list[NodeState]:
    """Nodes that hold KV, of all spaces, in a stable order; routers are left out."""
    found = [
        node
        for name, space in state.spaces.items()
        if name != ROUTER_SPACE
        for node in space.nodes.values()
    ]
    return sorted(found, key=lambda node: (node.space, node.name))


def joined(state: State) -> list[NodeState]:
    return [node for node in engines(state) if node.status == JOINED]


def check_nodes(state: State, beating: Collection[str]) -> list[Finding]:
    """``beating``: names of nodes whose heartbeat was heard while we listened."""
    known = engines(state)
    if not known:
        return [
            warn(
                "nodes",
                "no engine has joined yet",
                "start vLLM with the --kv-transfer-config that `kvferry up` prints",
            )
        ]
    findings = []
    for node in known:
        findings.append(_check_node(node, node.name in beating))
        if node.status == JOINED:
            findings += [limit(node.name, text) for text in node.warnings]
    return findings


def _check_node(node: NodeState, beats: bool) -> Finding:
    check = f"node {node.name}"
    why = f" ({node.why})" if node.why else ""
    if node.status == CLOSED:
        return ok(check, f"stopped cleanly{why}")
    if node.status == LEFT:
        return warn(
            check,
            f"is gone{why}",
            "start it again if it should be there; its process and log say why it went",
        )
    if node.status != JOINED:
        return fail(
            check,
            f"{node.status}{why}",
            "look at its process and log; it joins again by itself when it can",
        )
    if not beats:
        return fail(
            check,
            "joined, but its heartbeat was not heard",
            "see that the engine runs and reaches this NATS server",
        )
    return ok(check, f"joined space {node.space}, incarnation {node.incarnation}")


def limit(node: str, text: str) -> Finding:
    """A node's own warning; by convention ``what is wrong; the cure``."""
    head, _, cure = text.rpartition("; ")
    return warn(f"node {node}", head or text, cure if head else "see the engine's log")


def check_spaces(state: State) -> list[Finding]:
    """Engines of one model that cannot share, and which components keep them apart."""
    by_model: dict[str, dict[str, NodeState]] = defaultdict(dict)
    sizes: dict[str, int] = defaultdict(int)
    for node in joined(state):
        sizes[node.space] += 1
        by_model[_model_stem(node.components)].setdefault(node.space, node)
    findings = [
        ok(f"space {space}", f"{count} nodes can share")
        if count > 1
        else warn(
            f"space {space}",
            "has one node only, so there is nobody to share with",
            "start a second engine with the same options and this ledger",
        )
        for space, count in sorted(sizes.items())
    ]
    for spaces in by_model.values():
        for one, other in combinations(spaces.values(), 2):
            findings.append(_apart(one, other))
    return findings


def _apart(one: NodeState, other: NodeState) -> Finding:
    names = differing(one.components, other.components)
    values = "; ".join(
        f"{name}: {one.components.get(name, 'unknown')} on {one.name}, "
        f"{other.components.get(name, 'unknown')} on {other.name}"
        for name in names
    )
    cures = dict.fromkeys(COMPONENT_CURES.get(name, OTHER_CURE) for name in names)
    return fail(
        f"spaces of {one.name} and {other.name}",
        f"one model, but their KV is not interchangeable. {values}",
        "; ".join(cures) or OTHER_CURE,
    )


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Names of the components whose values differ or that only one side has."""
    names: Iterable[str] = sorted(set(one) | set(other))
    return [name for name in names if one.get(name) != other.get(name)]


def _model_stem(components: Mapping[str, str]) -> str:
    """The model without its revision or digest: other weights of one name should be noticed."""
    return components.get("model", "").partition("@")[0].rstrip("/").rpartition("/")[2].lower()
