"""The way to workers: connections for requests, and the router's own questions."""
