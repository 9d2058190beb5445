"""What `helm test` runs: is a router there, does it have workers, do they name their models?

usage: test_connection.py URL workers|no-workers
"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request


def get(url: str) -> tuple[int, bytes]:
    """Whom the certificate is for is not asked: inside of the cluster the router has another name."""
    context = ssl._create_unverified_context()
    request = urllib.request.Request(url)
    # As the router reads its file: one key a line, and comments.
    lines = [line.strip() for line in os.environb.get(b"API_KEYS", b"").splitlines()]
    key = next((line for line in lines if line and not line.startswith(b"#")), None)
    if key:
        request.add_header("Authorization", f"Bearer {key.decode()}")
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        sys.exit(f"{url}: {error}")


def main() -> None:
    url, expected = sys.argv[1:]
    status, body = get(f"{url}/health/live")
    if status != 200:
        sys.exit(f"{url}/health/live: {status} {body.decode()}")
    status, body = get(f"{url}/health/ready")
    if expected == "no-workers":
        print("a router serves; it has not been told of any workers")
        return
    if status != 200:
        sys.exit(f"a router serves, but it has no worker that is ready: {status} {body.decode()}")
    status, body = get(f"{url}/v1/models")
    if status != 200:
        sys.exit(f"{url}/v1/models: {status} {body.decode()}")
    models = [model["id"] for model in json.loads(body)["data"]]
    print("a router serves", ", ".join(models))


main()
