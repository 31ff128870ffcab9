"""The tensors that a Python model has beside its own, and the option of its routes."""

from __future__ import annotations

#: An input and an output of a model that gives several responses. The input is
#: [request, step, deadline in ns of `time.monotonic_ns`]. Step -1 means that no more
#: responses are wanted. The output states whether the step gave a response. The model
#: reads its other inputs only in step 0.
STEP = "popgate.step"
#: The output of such a model that states whether another response follows.
MORE = "popgate.more"
#: The input and the output of a request to a route. A model may not use these names
#: itself.
ROUTE = "popgate.request"
ANSWER = "popgate.answer"
#: The metadata option of a model with routes. Its value is a JSON document with
#: `routes` (pairs of method and address), and the `paths` and `components` of OpenAPI.
OPTION_ROUTES = "popgate.routes"
