"""Nodes: how each kind of node becomes a call of the run's ledger, one module per kind."""
