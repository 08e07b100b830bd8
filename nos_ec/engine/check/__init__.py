"""Compares the metadata with the contents of the stores, and changes nothing.

Each module checks one kind of thing, in pages, and holds one page in memory. While the store works, things change
during the check. Therefore a row is read before and after the data that it is compared with, and the comparison counts
only if both reads return the same row. What is found this way is checked again two seconds later (second_look.py).
May import the engine except `dump`, `explain`, `gc` and `scrub`. Begin with checker.py, then blocks.py.
"""
