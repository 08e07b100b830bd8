"""The use cases of the store, through ports only: this package never imports an adapter.

`objects` serves clients, `packing` fills stripes, `gc` empties blocks, `upkeep` cleans up after crashes. Many of them
use the modules of this package itself (leases, retry queues, limits of rates and space). May import ports and core. To
begin, follow `Store.put` in objects/store.py, then `StripeWriter.pack` in packing/stripe_writer.py.
"""
