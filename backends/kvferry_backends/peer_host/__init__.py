"""Same host, one-sided: the target reads blocks out of the source process's host memory."""
