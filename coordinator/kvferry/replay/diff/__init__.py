"""What differs between two folded states."""
