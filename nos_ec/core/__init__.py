"""Pure rules of the engine: values in, plans out. No clock, files, sockets, randomness or logging."""
