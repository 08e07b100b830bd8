"""The embedded default: landing store, block store and message log on local files."""
