"""Prefill for TileRT decode nodes: claimed requests' KV goes out over TileRT's own wire.

vLLM computes the prompt, the connector here writes its KV into the receive buffer of an unmodified
TileRT decode server, and whoever routes the request then asks that server to decode. What is here
is our own implementation of TileRT's protocol; nothing of its package is imported.
"""
