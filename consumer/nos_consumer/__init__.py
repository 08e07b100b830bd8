"""The consumer service: packs published objects into stripes."""
