"""nos_ec: packs small objects into full erasure-coded stripes and reclaims the holes deletes leave."""

__version__ = "0.1.0"
