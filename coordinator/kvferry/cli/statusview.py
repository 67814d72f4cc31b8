"""The status document as text for people."""

from __future__ import annotations

from typing import Any

from kvferry.cli import render
from kvferry.cli.keepview import print_keeps
from kvferry.cli.leaseview import print_leases, print_sessions
from kvferry.cli.slotview import print_slots
from kvferry.cli.times import duration, wall_ms
from kvferry.core.state import COST_OFF

Document = dict[str, Any]
TOKEN_WORDS = (
    ("local", "already in the engine's own cache"),
    ("pulled", "pulled from another node, or from the own host tier"),
    ("computed", "computed"),
)


def print_status(document: Document) -> None:
    """Never bare zeros: what is empty says what has to happen first."""
    _print_ledger(document)
    heard = _heard(document["coordinator"])
    for name, space in document["spaces"].items():
        _print_space(name, space, heard)
    _print_routers(document["routers"])
    print_slots(document["routers"], document["coordinator"])
    _print_quarantine(document["quarantined"])
    if document["advice"]:
        render.heading("what is missing")
        for text in document["advice"]:
            render.line(f"  {text}")


def _print_ledger(document: Document) -> None:
    render.line(f"ledger {document['url']}, {_facts(document['last_seq'])}")
    for one in document["coordinators"]:
        lag = max(0, document["last_seq"] - one["position"])
        role = f"leads, term {one['term']}" if one["leader"] else "stands by"
        late = "up to date" if not lag else f"{render.number(lag)} messages behind"
        render.line(f"coordinator {one['replica']}: {role}; {late}")
    if document["source"] == "ledger":
        render.line(
            f"{document['source_why']}: this is folded from the ledger here and now. Engines go "
            "on serving; requests without a hint recompute until a coordinator runs "
            "(`kvferry up` or `kvferry coordinator`)"
        )


def _facts(last_seq: int) -> str:
    if not last_seq:
        return "empty: nothing has been recorded yet"
    return f"{render.number(last_seq)} messages of facts so far"


def _heard(coordinator: Document | None) -> dict[tuple[str, str], str]:
    """When each (space, node) was last heard on the bus; only a coordinator knows."""
    if coordinator is None:
        return {}
    return {
        (one["space"], one["node"]): f"{duration(1_000 * one['ago_s'])} ago"
        for one in coordinator["heard"]
    }


def _print_space(name: str, space: Document, heard: dict[tuple[str, str], str]) -> None:
    mode = "" if space["mode"] == "on" else f": {space['mode'].upper()}, `kvferry resume` ends it"
    moves = "; plans move whatever is held (--cost off)" if space["cost"] == COST_OFF else ""
    render.heading(f"space {name}{mode}{moves}")
    _print_nodes(name, space, heard)
    print_keeps(space)
    _print_offers(space["offers"])
    print_leases(space["leases"], space["evictions"])
    print_sessions(space["sessions"])
    _print_transfers(space["transfers"])
    _print_links(space)
    _print_predictions(space)
    _print_reuse(space["reuse"])
    _print_misses(space["misses"])
    lost = {lane: count for lane, count in space["gaps"].items() if count}
    for lane, count in lost.items():
        render.line(f"lost before they reached the ledger: {count} events of the {lane} lane")
    for node in space["nodes"]:
        for text in node["warnings"]:
            render.line(f"warning of {node['name']}: {text}")


def _print_nodes(name: str, space: Document, heard: dict[tuple[str, str], str]) -> None:
    rows = []
    for node in space["nodes"]:
        state = node["status"]
        if node["why"]:
            state += f" ({node['why']})"
        if node["mode"] != "on":
            state += f", {node['mode']}"
        rows.append(
            (
                node["name"],
                node["role"],
                state,
                heard.get((name, node["name"]), ""),
                node["address"],
                node["epoch"],
                node["blocks"],
                node["offers"],
                node["offered_tokens"],
            )
        )
    render.table(
        (
            "node",
            "role",
            "state",
            "heard",
            "address",
            ">epoch",
            ">blocks",
            ">offers",
            ">offered tokens",
        ),
        rows,
    )


def _print_offers(tiers: Document) -> None:
    for tier, held in tiers.items():
        what = "offered from the cache" if tier == "cache" else f"leased in {tier}"
        room = f" (room for {render.number(held['room'])})" if "room" in held else ""
        render.line(
            f"{what}: {render.number(held['offers'])} runs, {render.number(held['blocks'])} "
            f"blocks{room}, {render.number(held['tokens'])} tokens"
        )


def _print_transfers(transfers: Document) -> None:
    done, failed = transfers["done"], transfers["failed"]
    if done or failed or transfers["open_total"]:
        reasons = ", ".join(f"{count} {why}" for why, count in transfers["failures"].items())
        render.line(
            f"transfers: {render.number(transfers['open_total'])} in flight, "
            f"{render.number(done)} done ({render.size(transfers['bytes_moved'])}), "
            f"{render.number(failed)} failed{f' ({reasons})' if reasons else ''}"
        )
    now = wall_ms()
    for one in transfers["open"]:
        age = duration(max(0, now - one["requested_ms"]))
        render.line(
            f"  {one['transfer']}: {one['source']} to {one['target']}, {one['granted']} blocks, "
            f"since {age}, for {one['request']}"
        )


def _print_links(space: Document) -> None:
    """Which backend each pair uses and why, and what was measured of the others."""
    rates = {one["link"]: one for one in space["links"]}
    for one in space["backends"]:
        source, _, target = one["pair"].partition(">")
        render.line(f"{target} reads from {source} over {one['backend']}: {one['why']}")
    if rates:
        render.table(
            ("link", "backend", ">GB/s", ">floor ms", ">observed"),
            [
                (*link.rsplit("/", 1), f"{one['gb_per_s']:.3g}", one["floor_ms"], one["n"])
                for link, one in rates.items()
            ],
        )


def _print_predictions(space: Document) -> None:
    """What plans thought that moves take beside what they took, and what computing costs."""
    if space["predictions"]:
        render.table(
            ("plans for", ">compared", ">usually off by", ">half within", ">95 % within"),
            [
                (
                    one["key"],
                    one["n"],
                    f"{100 * one['bias']:+.0f} %",
                    f"{100 * one['p50']:.0f} %",
                    f"{100 * one['p95']:.0f} %",
                )
                for one in space["predictions"]
            ],
        )
    for one in space["prefill"]:
        speeds = ", ".join(
            f"{render.number(speed)} at {render.number(int(length))}"
            for length, speed in one["tokens_per_s"].items()
        )
        render.line(f"{one['node']} computes tokens a second by prompt length: {speeds}")


def _print_reuse(reuse: Document) -> None:
    if not reuse["requests"]:
        return
    render.line(
        f"{render.number(reuse['requests'])} requests, "
        f"{render.number(reuse['prompt_tokens'])} prompt tokens:"
    )
    for word, meaning in TOKEN_WORDS:
        tokens, share = reuse[f"{word}_tokens"], reuse[f"{word}_share"]
        part = "" if share is None else f"{100 * share:5.1f} %"
        render.line(f"  {part:>8}  {render.number(tokens):>12}  {meaning}")
    if reuse["prompt_sent"]:
        more = render.number(reuse["prompt_sent"])
        render.line(f"{more} prompt tokens more were sent to TileRT nodes")
    if reuse["bytes_sent"]:
        render.line(f"sends to TileRT nodes carried {render.size(reuse['bytes_sent'])}")


def _print_misses(misses: list[Document]) -> None:
    if not misses:
        return
    render.line("requests that pulled nothing, by cause:")
    for one in misses:
        render.line(f"  {render.number(one['count']):>8}  {one['cause']}: {one['meaning']}")
        render.line(f"            cure: {one['cure']}")


def _print_routers(routers: Document) -> None:
    if routers["nodes"]:
        names = ", ".join(_router(one) for one in routers["nodes"])
        render.line(f"\nrouters: {names}; {render.number(routers['turns'])} turns answered")


def _router(node: Document) -> str:
    """A prefill engine that only sends to TileRT's nodes stands among the routers, by its role."""
    other = f", {node['role']}" if node["role"] not in ("", "router") else ""
    return f"{node['name']} ({node['status']}{other})"


def _print_quarantine(quarantined: Document) -> None:
    if not quarantined["total"]:
        return
    render.heading(f"{quarantined['total']} messages cannot be decoded")
    for one in quarantined["last"]:
        render.line(f"  sequence {one['seq']} on {one['subject']}: {one['why']}")
    render.line("  usually a newer kvferry wrote them: upgrade this one")
