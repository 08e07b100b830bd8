"""Garbage collection: choosing the blocks to collect, and runs that collect them."""
