"""Effect of large correct requests on the event loop and on other clients."""
