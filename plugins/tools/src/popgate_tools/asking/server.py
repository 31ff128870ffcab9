"""The server that a command calls: its options, and the clients made from them.

All commands that call a server take a `Server`. Nothing else on the command line makes
a client.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import EXIT_FAILED, EXIT_USAGE, CommandError
from popgate_tools.asking.option_groups import OptionGroup

if TYPE_CHECKING:
    from popgate_client import AsyncClient, Client, ClientError

LOCAL = "http://127.0.0.1:8000"
ANSWER = 5.0  # seconds for the answer to a short request
_PANEL = "Server"
_URL_HELP = "URL of the server: http://, https:// or unix:PATH."


@dataclass(frozen=True, slots=True)
class Server(OptionGroup):
    """Address of the server, and credentials for it."""

    url: Annotated[
        str, typer.Option(help=_URL_HELP, envvar="POPGATE_URL", rich_help_panel=_PANEL)
    ] = LOCAL
    key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="API key to send.",
            envvar="POPGATE_KEY",
            rich_help_panel=_PANEL,
        ),
    ] = ""
    cacert: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Certificate authorities to trust for https:// (PEM).",
            envvar="SSL_CERT_FILE",
            rich_help_panel=_PANEL,
        ),
    ] = ""
    cert: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Client certificate (PEM). The file also contains its key, unless "
            "--cert-key names it.",
            envvar="POPGATE_CLIENT_CERT",
            rich_help_panel=_PANEL,
        ),
    ] = ""
    cert_key: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Private key of --cert (PEM).",
            envvar="POPGATE_CLIENT_CERT_KEY",
            rich_help_panel=_PANEL,
        ),
    ] = ""
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="'NAME: VALUE'",
            help="Header to send with every request. May be repeated.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    @property
    def shown_url(self) -> str:
        """The URL without a user and password, for messages and reports."""
        from popgate_client import without_credentials

        return without_credentials(self.url)

    def client(self, **options: Any) -> Client:
        """Return a client of the server; `options` are those of `Client`.

        Raises `CommandError` for options that are wrong.
        """
        from popgate_client import Client

        with self.errors():
            return Client(self.url, **self._options(), **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """Return a client for an event loop."""
        from popgate_client import AsyncClient

        with self.errors():
            return AsyncClient(self.url, **self._options(), **options)

    @contextmanager
    def asking(self) -> Iterator[Client]:
        """Open a client for a few short requests.

        Errors within end the command.
        """
        with self.errors(), self.client(timeout=ANSWER, retries=0) as client:
            yield client

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of connections; None for plain HTTP."""
        return self._context() if self.url.startswith("https:") else None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn the errors of a client within into `CommandError`."""
        from popgate_client import AuthenticationError, ConnectionFailed, InvalidRequest
        from popgate_client import ClientError as Failed

        try:
            yield
        except ConnectionFailed as e:
            raise CommandError(self._no_answer(e)) from None
        except AuthenticationError as e:
            raise CommandError(self._refused(e)) from None
        except InvalidRequest as e:
            code = EXIT_FAILED if e.status else EXIT_USAGE
            raise CommandError(str(e), code) from None
        except Failed as e:
            raise CommandError(str(e)) from None

    def _refused(self, error: ClientError) -> str:
        which = "another key" if self.key else "a key"
        return f"{error}; give {which} with --key or POPGATE_KEY"

    def _no_answer(self, error: Exception) -> str:
        said = str(error)
        if "CERTIFICATE_VERIFY_FAILED" in said:
            hint = (
                "name the authority that signed its certificate with --cacert "
                "(SSL_CERT_FILE)"
            )
        elif "alert certificate required" in said or "alert handshake" in said:
            hint = (
                "the server requires a client certificate; name it with --cert "
                "(POPGATE_CLIENT_CERT)"
            )
        else:
            hint = "check --url, and that `popgate serve` runs there"
        return f"no answer from {self.shown_url}: {said}; {hint}"

    def _options(self) -> dict[str, Any]:
        return {
            "api_key": self.key or None,
            "headers": self._headers(),
            "verify": self._context() if self.url.startswith("https:") else True,
        }

    def _headers(self) -> dict[str, str]:
        found = {}
        for item in self.headers or ():
            name, colon, value = item.partition(":")
            if not (colon and name.strip()):
                msg = f"--header {item}: expected 'NAME: VALUE'"
                raise CommandError(msg, EXIT_USAGE)
            found[name.strip()] = value.strip()
        return found

    def _context(self) -> ssl.SSLContext:
        from popgate_client import default_context

        option, file = "--cacert", self.cacert
        try:
            context = default_context(self.cacert or None)
            if self.cert:
                option, file = "--cert", self.cert
                # Encrypted keys are refused: the command may run without a terminal for
                # the password.
                context.load_cert_chain(
                    self.cert, self.cert_key or None, password=lambda: ""
                )
        except (OSError, ValueError) as e:
            why = getattr(e, "strerror", None) or e
            raise CommandError(f"{option} {file}: {why}", EXIT_USAGE) from None
        return context
