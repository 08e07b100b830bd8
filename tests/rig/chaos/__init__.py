"""Chaos: clients, strikes on servers and daemons, and the check that nothing was lost."""
