"""One module per schema version, never changed once released."""
