"""Files that survive a power cut: writes with fsync of file and folder, the files of a message log, probes of folders.

May import ports and core. Begin with durable.py.
"""
