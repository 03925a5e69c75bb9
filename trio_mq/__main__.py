"""``python -m trio_mq``: the command line, for an environment whose scripts are not on the path."""

from __future__ import annotations

from trio_mq.cli.app import main

if __name__ == "__main__":
    main()
