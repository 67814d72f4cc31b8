"""``kvferry demo --tilert``: a conversation on TileRT's own decode server, without its hardware.

What runs the server on a CPU is used by the tests too: :mod:`.shim`, :mod:`.profile`,
:mod:`.model`, :mod:`.package`, :mod:`.serving`.
"""
