"""How a command says that it could not do what was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXIT_FAILED = 1  # the thing was tried and failed
EXIT_USAGE = 2  # it was asked for wrongly: options, paths, addresses
EXIT_NO_DEVICE = 3  # no device came free in the time allowed

EXIT_INTERRUPTED = 130  # by Control-C, as a shell says it


class CommandError(Exception):
    """Ends a command: the message goes to standard error, the code to the shell."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def client_errors(url: str) -> Iterator[None]:
    """What a client of `popgate.client`, of the server at `url`, raises within becomes
    what the command says."""
    from popgate.client import ClientError, ConnectionFailed, InvalidRequest

    try:
        yield
    except ConnectionFailed as e:
        msg = f"no answer from {url}: {e}; is `popgate serve` running there?"
        raise CommandError(msg) from None
    except InvalidRequest as e:
        raise CommandError(str(e), EXIT_FAILED if e.status else EXIT_USAGE) from None
    except ClientError as e:
        raise CommandError(str(e)) from None


def check_plain(url: str) -> None:
    """Raises `CommandError` for what measures by sockets of its own."""
    if url.startswith("https:"):
        raise CommandError("--url: plain HTTP only, as in http://HOST", EXIT_USAGE)
