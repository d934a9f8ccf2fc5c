"""The command line. One verb is one file, loaded when it is called; nothing imports this package.

Exit codes: 0 all is well, 1 the result is negative (a gate failed, samples ended in errors),
2 misuse, 130 interrupted.
"""

from quintain.cli.app import main

__all__ = ["main"]
