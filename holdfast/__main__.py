"""`python -m holdfast` is the command line; worker processes are started this way."""

from holdfast.cli import main

if __name__ == "__main__":
    main()
