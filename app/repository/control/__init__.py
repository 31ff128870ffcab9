"""Control of models: which are loaded, and when."""
