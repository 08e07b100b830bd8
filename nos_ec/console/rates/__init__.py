"""What only single processes know, as Prometheus has collected it: rates, durations, errors, and the alert rules."""
