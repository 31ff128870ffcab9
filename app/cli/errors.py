"""Error messages and exit codes of the commands."""

from __future__ import annotations

EXIT_FAILED = 1  # the command did not succeed
EXIT_USAGE = 2  # wrong use: options, paths, addresses
EXIT_NO_DEVICE = 3  # no device became free in time

EXIT_INTERRUPTED = 130  # by Control-C, as shells report it


class CommandError(Exception):
    """Ends a command: the message goes to standard error, the exit code to
    the shell.
    """

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
