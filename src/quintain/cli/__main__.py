"""`python -m quintain.cli`, for where the script is not on the PATH."""

from quintain.cli.app import main

main()
