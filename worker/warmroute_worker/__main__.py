"""`python -m warmroute_worker` is `warmroute worker`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
