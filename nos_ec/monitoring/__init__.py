"""Monitoring of a process: metrics, health, an HTTP endpoint, systemd notifications."""
