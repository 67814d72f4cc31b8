"""``kvferry whatif``: decide history again, as it was decided and under another policy.

``again`` checks that the shipped code comes to the decisions that the ledger records. ``fleet``
runs the ledger's requests through simulated nodes twice, under the recorded policy and under
another one; what differs between the two is applied to what was measured. ``study`` drives both
over one pass.
"""
