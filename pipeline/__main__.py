"""`python -m pipeline`: the same as `python -m pipeline.main`."""

import sys

from pipeline import main

if __name__ == "__main__":
    sys.exit(main.main())
