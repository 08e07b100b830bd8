"""What an operator needs to watch a process: metrics, health, an HTTP endpoint, systemd notifications."""
