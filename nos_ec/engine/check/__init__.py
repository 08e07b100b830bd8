"""Compares what the metadata says with what the stores hold, and changes nothing.

Each module looks at one kind of thing, page by page, and holds a page of it in memory. Beside a working store, things
change while they are looked at. Therefore a row is read before and after whatever is compared with it, and counts only
if it is the same both times; and what was found so is looked at again two seconds later (second_look.py).
"""
