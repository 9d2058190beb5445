"""`python -m warmroute_router` is `warmroute serve`; the word `serve` may be there or not."""

import sys

from .serve import main

if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(main(arguments[1:] if arguments[:1] == ["serve"] else arguments))
