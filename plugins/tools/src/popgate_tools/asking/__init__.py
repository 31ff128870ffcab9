"""Options for the server that a command calls, declared once, and clients made from
them.
"""

from popgate_tools.asking.model import AskedModel, ask_model, asked_model
from popgate_tools.asking.option_groups import OptionGroup, grouped
from popgate_tools.asking.request_options import RequestOptions, sequence_parameters
from popgate_tools.asking.server import Server

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
