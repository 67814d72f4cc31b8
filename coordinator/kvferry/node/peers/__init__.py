"""Authenticated sessions between nodes, keys and hints."""
