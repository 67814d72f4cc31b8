"""Blocks over plain TCP: always there, two-sided, fenced by closing the socket."""
