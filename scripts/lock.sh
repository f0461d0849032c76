#!/usr/bin/env bash
# The hashed list of what is installed, from pyproject.toml, for every platform and Python: lock.sh UV
# No registry's host is written, so that a mirror serves as well. Versions that are locked stay unless UPGRADE=1.
set -euo pipefail
uv=$1
options=(--quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url
  --no-emit-find-links ${UPGRADE:+--upgrade})
"$uv" pip compile pyproject.toml --extra hub "${options[@]}" --output-file requirements/hub.txt
"$uv" pip compile pyproject.toml --extra hub --group dev "${options[@]}" --constraints requirements/hub.txt \
  --output-file requirements/dev.txt
