"""The data plane: one leaf per way to move blocks, found through entry points."""
