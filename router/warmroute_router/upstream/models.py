"""Which models a worker says that it serves."""

from typing import Any

import orjson

from ..config import WorkerSpec
from .worker_client import Unanswered, WorkerClient

PATH = "/v1/models"
_TIMEOUT = 2.0
_MOST = 1024
"""Models of one worker: a base model and its adapters."""
_LONGEST = 256
"""Characters of a name."""


async def ask_models(client: WorkerClient, spec: WorkerSpec) -> tuple[str, ...] | None:
    """Their names, in its order; None where it does not say. Raises Unanswered where it leaves that open."""
    answer = await client.get(spec, PATH, timeout=_TIMEOUT)
    if answer.status >= 500:
        raise Unanswered(f"it answers {answer.status}")
    listed = read_models(answer.body) if answer.status == 200 else None
    names = [model["id"] for model in listed or () if len(model["id"]) <= _LONGEST]
    return tuple(dict.fromkeys(names[:_MOST])) or None


def read_models(body: bytes) -> list[dict[str, Any]] | None:
    """As listed; None where it is no such list."""
    try:
        models = orjson.loads(body)["data"]
        return [model for model in models if isinstance(model.get("id"), str)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
