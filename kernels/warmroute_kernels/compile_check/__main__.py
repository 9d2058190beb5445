import os
import sys

# Before Triton is imported: what its interpreter gets is not compiled.
os.environ.pop("TRITON_INTERPRET", None)

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
