"""What a node offers to peers, which pins stand, and leases."""
