"""`python -m mha_core`."""

import sys

from mha_core.cli import main

sys.exit(main())
