"""Explains why an object is where it is, and why a block is not collected. Only reads.

objects.py and blocks.py collect facts; object_reasons.py and block_reasons.py derive reasons and sentences from them.
May import the rest of the engine except `dump` and `scrub`. Begin with objects.py.
"""
