"""A ledger as a trace for the Perfetto UI."""
