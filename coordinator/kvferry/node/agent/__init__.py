"""The engine process's life in the ledger."""
