"""The landing log on raw block devices or files of fixed size, divided into slots.

May import `files`, ports and core. Begin with device_log.py; device_format.py has the bytes of a superblock.
"""
