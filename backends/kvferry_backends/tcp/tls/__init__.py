"""TLS for the tcp backend, in a process of its own beside the engine.

Python's ``ssl`` hands out one record, 16 KiB, for each call and each time waits for the GIL again:
beside one busy thread that is some MB/s. So a small process, the *gate*, holds the certificates,
accepts and makes the TLS connections, and passes the engine one end of a Unix socket for each. In
the engine all stays as it is without TLS: few, large calls straight from and into the blocks, and
the fence is still the end of a socket.

Both ends of a connection show a certificate of the CA that the other one trusts. Names are not
compared: peers are found by address, and what they may read is decided by grants.
"""
