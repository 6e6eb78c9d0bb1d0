"""`python -m fnll` is `fnll`."""

import sys

from fnll.cli import main

sys.exit(main())
