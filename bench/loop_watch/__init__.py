"""What large requests that are right do to the event loop, and to others."""
