"""``kvferry bench plan``: how long a plan takes under load, from a node's ask to its answer."""
