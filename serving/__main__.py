"""`python -m serving` is `millpond`."""

import sys

from serving.cli import main

sys.exit(main())
