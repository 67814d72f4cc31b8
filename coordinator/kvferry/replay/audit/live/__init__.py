"""The ledger's view held against what each living node says that it holds."""
