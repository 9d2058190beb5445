"""How to see that a file has changed: keys, certificates and lists of workers are read again then."""

import os
from pathlib import Path

Stamp = tuple[int, ...]
"""What differs once a file has changed."""


def file_stamp(file: Path) -> Stamp:
    """Of what a link points to: Kubernetes swaps links. With the time of change, since rights are not in the others.

    Raises OSError with one line.
    """
    try:
        status = os.stat(file)
    except OSError as error:
        raise OSError(f"{file} cannot be read: {error.strerror}") from None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
