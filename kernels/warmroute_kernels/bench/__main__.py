import os
import sys

# Before Triton is imported. Elsewhere the interpreter is of no use: nothing of it can be timed.
if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"
else:
    os.environ.pop("TRITON_INTERPRET", None)

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
