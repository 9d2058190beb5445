"""nginx and HAProxy: round robin over the workers in one thread, set up as somebody would who streams answers."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cached_property
from urllib.parse import urlsplit

from .program import RIVALS, Place

DEBIAN = RIVALS / "debian"
"""Packages that scripts/rivals has unpacked."""
SBIN = "/usr/sbin"
"""Not on everybody's PATH."""


class Balancer:
    def __init__(self, name: str, flags: tuple[str, ...], configuration: Callable[[Place], str]) -> None:
        self.name = name
        self._flags = flags
        """Those before the name of the configuration file."""
        self._configuration = configuration

    @cached_property
    def command(self) -> tuple[str, ...]:
        """Empty where it is neither on PATH nor unpacked."""
        if binary := shutil.which(self.name, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}"):
            return (binary,)
        unpacked = DEBIAN / f"usr/sbin/{self.name}"
        libraries = ":".join(map(str, (DEBIAN / "usr/lib").glob("*-linux-gnu*")))
        return ("/usr/bin/env", f"LD_LIBRARY_PATH={libraries}", str(unpacked)) if unpacked.exists() else ()

    @property
    def installed(self) -> bool:
        return bool(self.command)

    @cached_property
    def title(self) -> str:
        if not self.installed:
            return self.name
        said = subprocess.run([*self.command, "-v"], capture_output=True, text=True, check=True)
        found = re.search(r"\d+\.\d+(\.\d+)?", said.stdout + said.stderr)
        return f"{self.name} {found[0]}" if found else self.name

    def arguments(self, place: Place) -> list[str]:
        file = place.folder / f"{self.name}.conf"
        file.write_text(self._configuration(place))
        return [*self._flags, str(file)]


def nginx_configuration(place: Place) -> str:
    servers = "\n".join(f"        server {_address(url)};" for url in place.urls)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"    {kind}_temp_path {place.folder / kind};" for kind in kinds)
    return f"""\
daemon off;
worker_processes 1;
pid {place.folder / "nginx.pid"};
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
{temporary}
    access_log off;
    client_max_body_size 0;
    keepalive_requests 100000000;
    upstream workers {{
{servers}
        keepalive 256;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{place.port};
        location / {{
            proxy_pass http://workers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_read_timeout 1h;
        }}
    }}
}}
"""


def haproxy_configuration(place: Place) -> str:
    servers = "\n".join(f"    server w{number} {_address(url)}" for number, url in enumerate(place.urls))
    return f"""\
global
    nbthread 1
    maxconn 4096
defaults
    mode http
    http-reuse always
    option http-no-delay
    timeout connect 10s
    timeout client 1h
    timeout server 1h
frontend clients
    bind 127.0.0.1:{place.port}
    default_backend workers
backend workers
    balance roundrobin
{servers}
"""


def _address(url: str) -> str:
    return urlsplit(url).netloc


NGINX = Balancer("nginx", ("-e", "stderr", "-c"), nginx_configuration)
HAPROXY = Balancer("haproxy", ("-db", "-f"), haproxy_configuration)
