"""Request traces: real ones from files, and made ones by name."""

from .load import FORMATS, load_trace
from .request import Trace, TraceError, TraceRequest

__all__ = ["FORMATS", "Trace", "TraceError", "TraceRequest", "load_trace"]
