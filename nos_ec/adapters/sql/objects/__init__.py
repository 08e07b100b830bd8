"""Rows of objects and their versions, from the PUT that lands them to the commit that packs them and their release.

May import `driver`, `tables` and `blocks`, ports and core. Begin with puts.py, then packing.py and versions.py.
"""
