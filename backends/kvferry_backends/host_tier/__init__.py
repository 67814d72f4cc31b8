"""A second pool of the engine's blocks in host memory, and what copies between the two.

- :mod:`memory`: the pool: slots of one block each, laid out as the engine's own pool is.
- :mod:`mover`: what copies whole blocks between an engine's pool and its host pool, and
  ``make_mover``; :mod:`host` does it for engines in host memory, :mod:`cuda` for those on a GPU.
"""
