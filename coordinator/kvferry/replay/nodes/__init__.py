"""Engines' memory on paper: pools, host tiers, and leases that the real retention policy decides.

``kvferry bench policy`` runs traces through them, ``kvferry whatif`` a ledger's requests.
"""
