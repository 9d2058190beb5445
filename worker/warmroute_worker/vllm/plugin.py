"""vLLM calls `register` in each of its processes, through the entry point group `vllm.general_plugins`.

It runs wherever this distribution is installed beside vLLM, wanted or not: so it is quick, and never fails.
"""

import logging

logger = logging.getLogger(__name__)

BACKEND = "warmroute_worker.vllm.attention_backend.WarmrouteBackend"


def register() -> None:
    """Makes our kernels what `--attention-backend CUSTOM` means; nothing of them is imported until it is chosen."""
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError as error:
        logger.warning("this vLLM has no attention backends as warmroute knows them: %s", error)
        return
    register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
