"""Pure rules of the engine: values in, values out. No clock, files, sockets, randomness or logging.

`formats` has the bytes on disk, `packing` the contents of stripe groups, `gc` the choice of blocks to collect. May
import the standard library, and codecs and checksums (msgspec, google_crc32c). Begin with ids.py and states.py, then
packing/packer.py.
"""
