"""Asking a server: the options that say how, declared once, and the clients made of
them."""

from app.cli.asking.model import AskedModel, ask_model, asked_model
from app.cli.asking.option_groups import OptionGroup, grouped
from app.cli.asking.request_options import RequestOptions, sequence_parameters
from app.cli.asking.server import Server

__all__ = [
    "AskedModel",
    "OptionGroup",
    "RequestOptions",
    "Server",
    "ask_model",
    "asked_model",
    "grouped",
    "sequence_parameters",
]
