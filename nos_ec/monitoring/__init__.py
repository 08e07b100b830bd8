"""What lets an operator watch a process: metrics, health, an HTTP endpoint, systemd's notifications."""
