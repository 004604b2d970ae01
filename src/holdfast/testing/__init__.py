"""What Holdfast is tested with, for those who build on it: contracts, a state machine and faults.

`store_contract` and `store_machine` prove a session store of your own; `faults` kills, fails and
cuts the power of what it keeps on disk; `kernel_contract` proves a kernel. `vectors.json` pins the
stored format byte by byte. Needs the `testing` extra.
"""
