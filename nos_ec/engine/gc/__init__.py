"""Garbage collection: which blocks to collect, and one run that collects them."""
