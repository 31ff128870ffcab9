"""Configuration: `config.toml`, files that plugins translate, restrictions, profiles.

Runs in the gateway process and in the command line. May import `observe` and the
ground.
"""
