"""The router's pool of TileRT decode nodes, for requests that ask for it.

A turn on the pool leases a node's one slot, has P compute the prompt and write its KV to the node,
lets the node generate, and makes OpenAI's answer of the token ids that come. The slot goes back
when the node's reply has come to its end or a cancel is confirmed; where the router lost sight of
that, it is not free before the node was idle for longer than TileRT waits for anything.
"""
