"""Configuration: `config.toml`, `config.pbtxt`, restrictions, profiles.

Runs in the gateway process and in the command line. May import `observe` and the
ground.
"""
