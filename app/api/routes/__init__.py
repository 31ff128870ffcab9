"""The operations that are not inference: one file for each part of the API."""
