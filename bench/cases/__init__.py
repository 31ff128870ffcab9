"""What is sent: models, payloads, and requests with known answers."""
