"""`python -m serving` is `millpond`."""

import sys

from serving.commands.cli import main

sys.exit(main())
