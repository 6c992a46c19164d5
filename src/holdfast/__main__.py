"""`python -m holdfast` is the `holdfast` command."""

import sys

from holdfast.cli import main

sys.exit(main())
