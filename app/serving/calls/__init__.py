"""The gateway's end of calls from models to other models."""
