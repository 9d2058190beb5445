"""Triton's kernels run in its interpreter where there is no GPU: that has to be said before they are first imported."""

import os
import shutil

if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")
