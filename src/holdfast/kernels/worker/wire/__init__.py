"""Frames between worker and host, and how much one may carry."""
