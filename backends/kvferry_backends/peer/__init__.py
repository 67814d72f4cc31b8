"""Same host, one-sided: the target maps the source's memory and gathers blocks with one kernel."""
