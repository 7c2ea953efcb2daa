"""The command `staircase`: parse, call, print.

Help, usage errors and light commands answer at once: most subpackages import their names on first
use, and command modules import the others inside their functions.
"""

import sys

# Exit status after Ctrl-C.
INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        # Inside, so that Ctrl-C during an import exits quietly, too.
        from staircase_attention.cli.app import run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
