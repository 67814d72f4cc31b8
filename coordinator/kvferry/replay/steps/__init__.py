"""Going through a ledger message by message, and telling what each changed."""
