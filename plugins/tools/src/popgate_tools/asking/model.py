"""A model of a server as a command sees it: its inputs, and the form of its answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.cli.errors import EXIT_USAGE, CommandError
from app.observe.log_text import escaped

if TYPE_CHECKING:
    from popgate_client import Client


@dataclass(frozen=True, slots=True)
class AskedModel:
    """A model's inputs, each with datatype and shape, and the form of its answers.

    A request may leave out the inputs in `optional`. `streams`: the model may give any
    number of responses. `has_sequences`: its requests belong to sequences.
    """

    name: str
    version: str
    inputs: Mapping[str, tuple[str, list[int]]]
    optional: frozenset[str]
    streams: bool
    has_sequences: bool
    files: frozenset[str] = frozenset()
    """Numeric inputs that also accept files, pictures for example."""

    def taking_files(self) -> Mapping[str, tuple[str, list[int]]]:
        """Return the inputs, with BYTES as the datatype of those that accept files."""
        return {
            name: ("BYTES", shape[:1]) if name in self.files else (datatype, shape)
            for name, (datatype, shape) in self.inputs.items()
        }

    def takes(self) -> str:
        """Return the inputs as readable types."""
        from app.spec import notation

        found = self.inputs.items()
        return ", ".join(f"{escaped(n)} {notation(*spec)}" for n, spec in found)

    def problems(self, given: Collection[str]) -> list[str]:
        """Return the problems of the names of the given inputs."""
        unknown = sorted(set(given) - set(self.inputs))
        missing = sorted(set(self.inputs) - self.optional - set(given))
        return [
            *(f"no input {name!r}" for name in unknown),
            *(f"--input {escaped(name)}=… is missing" for name in missing),
        ]


def ask_model(client: Client, name: str, version: str) -> AskedModel:
    """Ask a server about a model. Raises `ClientError`, and `CommandError` with the
    reason if the model is not ready."""
    return asked_model(
        name, _metadata(client, name, version), _config(client, name, version)
    )


def asked_model(name: str, metadata: Any, config: Any) -> AskedModel:
    """Read a model's metadata and its configuration, {} if the server has none."""
    try:
        inputs = {i["name"]: (i["datatype"], i["shape"]) for i in metadata["inputs"]}
    except (KeyError, TypeError):  # the server's own metadata, for an empty name
        msg = f"the server does not describe the inputs of the model {name!r}"
        raise CommandError(msg, EXIT_USAGE) from None
    return AskedModel(
        name,
        str((metadata.get("versions") or [""])[-1]),
        inputs,
        frozenset(i["name"] for i in config.get("input") or () if i.get("optional")),
        bool((config.get("model_transaction_policy") or {}).get("decoupled")),
        "sequence_batching" in config,
        frozenset(i["name"] for i in metadata["inputs"] if i.get("files")),
    )


def _config(client: Client, name: str, version: str) -> dict[str, Any]:
    from popgate_client import ClientError, ConnectionFailed

    try:
        return dict(client.config(name, version=version))
    except ConnectionFailed:
        raise
    except (ClientError, TypeError, ValueError):  # a server without configurations
        return {}


def _metadata(client: Client, name: str, version: str) -> dict[str, Any]:
    from popgate_client import AuthenticationError, ClientError, ConnectionFailed

    try:
        document: dict[str, Any] = client.metadata(name, version=version)
    except (ConnectionFailed, AuthenticationError):
        raise
    except ClientError as error:
        for item in client.models():
            if item["name"] == name and item.get("reason"):
                which = f"version {item['version']}: " if item.get("version") else ""
                msg = f"{name} is {item['state']}: {which}{item['reason']}"
                raise CommandError(msg) from None
        raise error from None
    return document
