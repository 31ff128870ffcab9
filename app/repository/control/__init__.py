"""Which models are loaded, and when: the modes, requests of clients, and polls."""
