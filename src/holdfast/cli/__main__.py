"""`python -m holdfast.cli` is the `holdfast` command."""

from holdfast.cli.main import main

main()
