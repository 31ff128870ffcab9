"""The servers that are measured, started and watched."""
