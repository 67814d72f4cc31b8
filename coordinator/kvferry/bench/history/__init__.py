"""Histories of conversations as nodes would have written them: what benchmarks fill a ledger with.

Each turn goes from a prefill node to a decode node and leaves the facts that our connector leaves
for it: both pulls with their pins, both requests, the offers and what they supersede, the prefill's
lease and its end. A node whose pool is full gives up its oldest conversations, in two steps, as an
engine's cache does. Facts share messages as an agent makes them: what a node left between two looks
into its outbox.
"""
