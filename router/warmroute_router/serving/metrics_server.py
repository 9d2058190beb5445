"""The port for metrics, served by a thread of its own: a scrape keeps no request waiting for long."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from ..config import bracketed
from .listen import naming


@contextmanager
def metrics_served(host: str, port: int, registry: CollectorRegistry) -> Iterator[str]:
    """Gives the URL. Raises OSError with a message that names the address."""
    with naming(f"{bracketed(host)}:{port}"):
        server, thread = start_http_server(port, host, registry)
    try:
        yield f"http://{bracketed(host)}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
