"""`python -m mintyard.cli`: the command line without an installed script."""

from mintyard.cli import main

raise SystemExit(main())
