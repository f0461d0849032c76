"""B3: what the control plane carries. One run is one process (`run.py`); `b3.py` starts runs and makes the table."""
