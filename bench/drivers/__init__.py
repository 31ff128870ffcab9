"""Clients that send requests and check or count answers."""
