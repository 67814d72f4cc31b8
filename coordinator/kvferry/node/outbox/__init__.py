"""Where engine threads leave events."""
