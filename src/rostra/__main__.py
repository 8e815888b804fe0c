"""`python -m rostra` is the command `rostra`."""

from rostra.cli.app import main

if __name__ == "__main__":
    main()
