"""``kvferry advise``: does moving KV between engines pay for this traffic, and why.

From a ledger (:mod:`kvferry.replay.advise.ledger`), or from requests that were recorded before
anything was installed (:mod:`kvferry.replay.advise.files`), to one report.
"""
