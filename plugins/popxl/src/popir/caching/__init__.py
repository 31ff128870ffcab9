"""Compiled programs in a folder, which later sessions load instead of compiling."""

from popir.caching.program_cache import DEFAULT_SIZE, ProgramCache, Tell

__all__ = ("DEFAULT_SIZE", "ProgramCache", "Tell")
