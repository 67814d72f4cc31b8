"""Holds a ledger to its invariants: what must be true of any record, whatever died meanwhile."""
