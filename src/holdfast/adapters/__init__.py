"""Adapters: other frameworks on these stores; each needs its extra and the public API alone."""
