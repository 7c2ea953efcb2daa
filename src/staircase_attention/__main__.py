"""`python -m staircase_attention` is the command `staircase`."""

import sys

from staircase_attention.cli import main

if __name__ == "__main__":
    # The name that environment.json records.
    sys.argv[0] = "staircase"
    main()
