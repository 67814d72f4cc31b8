"""Asking coordinators where a prefix could come from."""
