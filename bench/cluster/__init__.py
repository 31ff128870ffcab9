"""PopGate on several nodes."""
