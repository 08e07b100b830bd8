"""The use cases of the store, through ports only: this package never imports an adapter.

`objects` serves clients, `packing` fills stripes, `gc` empties blocks, `upkeep` repairs what crashes leave behind. The
modules of this package itself (leases, back-off, limits of rates and space) are used by many of them. May import ports
and core. To begin, follow `Store.put` in objects/store.py, then `StripeWriter.pack` in packing/stripe_writer.py.
"""
