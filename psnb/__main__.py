"""``python -m psnb`` is the command ``psnb``."""

import sys

from psnb._src.cli import main

sys.exit(main())
