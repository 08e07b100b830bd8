"""Dumps the rows of a store, and rebuilds them from a dump and from the contents of blocks and the landing log.

dumper.py writes the pages of a dump, stored.py keeps dumps in the store itself, and uncertain.py lists what a rebuild
cannot know. May import the rest of the engine except `explain` and `scrub`. Begin with dumper.py, then rebuilder.py.
"""
