"""How many file descriptors this process may have: as many as it can get, and a word where that may be too few."""

import logging
import resource

from ..config import AdmissionConfig

logger = logging.getLogger(__name__)

_OWN = 256
"""For listeners, kept connections, files, gossip."""
_WITHOUT_CAP = 8192
"""What a router needs that lets all requests in: for no number in particular, but the usual 1024 are too few."""


def raise_limit(admission: AdmissionConfig) -> None:
    """Up to the hard limit, which only an administrator can raise."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            logger.info("the limit of %d open files stays: %s", soft, error)
    needed = needed_for(admission)
    if soft != resource.RLIM_INFINITY and soft < needed:
        logger.warning(
            "a limit of %d open files is low: a request takes two, and %d are asked for; raise it with `ulimit -n`, "
            "LimitNOFILE= of systemd, or --ulimit nofile= of docker",
            soft,
            needed,
        )


def needed_for(admission: AdmissionConfig) -> int:
    """By the requests that can be there at a time: each has a client's connection, and a worker's."""
    if admission.max_concurrent_requests is None:
        return _WITHOUT_CAP
    return 2 * (admission.max_concurrent_requests + admission.queue_size) + _OWN
