"""Properties of data types for tests."""

from popxl.testing._dtypes import get_all_dtypes, get_all_int_dtypes

__all__ = ("get_all_dtypes", "get_all_int_dtypes")
