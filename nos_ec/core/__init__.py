"""Pure rules of the engine: values in, values out. No clock, files, sockets, randomness or logging.

`formats` has the bytes on disk, `packing` what goes into a stripe group, `gc` which blocks are worth collecting. May
import only the standard library. Begin with ids.py and states.py, then packing/packer.py.
"""
