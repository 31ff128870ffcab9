"""Control of models: which are loaded and when, by mode, request of a client, or poll."""
