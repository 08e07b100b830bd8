"""Defines quotas: what buckets and accounts may hold (docs/adr/0058). Imports the rest of core only. Begin with
quota.py."""
