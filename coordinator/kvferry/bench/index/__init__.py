"""``kvferry bench index``: how fast and how small the residency index is, beside another one.

A *load* is what engines did, without regard to any index: requests that ended on nodes, and what
had to leave a node's cache for them. Each *contender* gets it in the form in which its own
engines report, and is measured in a process of its own. A *unit* is so many consecutive blocks
that a load never takes apart.
"""
