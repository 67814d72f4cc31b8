"""``kvferry bench rebuild``: how long a new coordinator takes to know all."""
