"""Programs that measure and prove: run each as `python -m bench.<name>`."""
