"""Explains why an object is where it is, and why a block is not collected. Only reads."""
