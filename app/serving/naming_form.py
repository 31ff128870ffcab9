"""Forms whose bodies name the model."""

from __future__ import annotations

from typing import Protocol

from app.codec.messages import Body
from app.serving.forms import Form
from app.serving.table import ModelTable


class NamingForm(Form, Protocol):
    """A form whose body names the model."""

    def target(self, body: Body, models: ModelTable) -> str:
        """Return the infer path of the model that a body names. Raises `RequestError`.

        Large bodies are read in a thread. A worker may call it twice for one body.
        """
