"""Files that survive a power cut: writes with fsync of file and folder, the file of the message log, probes of folders.

May import ports and core. Begin with durable.py.
"""
