"""Cases to send: models, payloads, and requests with known answers."""
