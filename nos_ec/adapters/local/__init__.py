"""The embedded adapters, the default: landing store, block store and message log on local files."""
