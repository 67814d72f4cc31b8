"""A ledger, or a part of one, as a file: written in one pass, read without a server.

The file is a row of chunks, each compressed and checked by itself, so that a file that was cut off
or damaged is readable but for the chunks that are hurt, and neither side needs it in memory.
"""
