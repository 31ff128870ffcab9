"""The server's side of calls from models to other models, which a plugin serves."""
