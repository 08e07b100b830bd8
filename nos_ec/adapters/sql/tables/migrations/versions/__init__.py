"""One module per schema version. Once released, a module never changes what it does."""
