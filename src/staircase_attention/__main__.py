"""`python -m staircase_attention` is the command `staircase`."""

import sys

from staircase_attention.cli import main
from staircase_attention.cores import watch_input

if __name__ == "__main__":
    # The name that environment.json records.
    sys.argv[0] = "staircase"
    watch_input()
    main()
