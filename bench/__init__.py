"""Measurements: every figure the documentation claims, taken in one run."""
