"""The load of a version: its memory, its ensemble's members, its threads."""
