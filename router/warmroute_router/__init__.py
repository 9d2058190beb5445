"""warmroute's router: a reverse proxy that sends each prompt to the worker whose KV cache holds most of it."""

__version__ = "0.1.0"
