"""Wide buckets: buckets whose objects lie in several cells, by a hash of their names (docs/adr/0068)."""
