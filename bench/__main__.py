"""``python -m bench``: the comparison."""

from .compare import main

if __name__ == "__main__":
    main()
