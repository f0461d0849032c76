"""`python -m mintyard.api`: an API process, started by the supervisor."""

import sys

from mintyard.api.worker import main

sys.exit(main())
