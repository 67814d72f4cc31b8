"""``kvferry bench link``: what each backend makes of the link between two processes.

Two *ends*, ``a`` and ``b``, each have a pool of blocks and every backend that works there. One of
them reads from the other, then the other way round: a *row* is one backend, one block size, one
pattern and one direction. A row's rate stands beside the raw limit of the same link, measured in
turn with it: one plain copy of the same bytes without any blocks.
"""
