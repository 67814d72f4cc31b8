"""``kvferry bench policy``: a request trace through the real retention and placement policies.

Nodes, links and engines are simulated; what to lease, what to copy to host memory and where to
pull from is decided by :mod:`kvferry.core`, as on a real node.
"""
