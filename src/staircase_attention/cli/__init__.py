"""The command `staircase`: parse, call, print.

Command modules import PyTorch and the rest of the package inside their functions, so that help,
usage errors and light commands answer at once.
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
