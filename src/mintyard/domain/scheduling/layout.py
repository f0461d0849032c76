"""How nodes, requests and jobs lie in the packed integer arrays that the kernels read. Names of rows and columns only.

`table` is int32 `[ROWS, capacity]`, one column a node, so that a scan over one quantity reads one contiguous row.
Everything a decision reads is an integer; shares are fixed point with `ONE` = 2^30.
"""

from __future__ import annotations

from typing import Final

from mintyard.domain.limits import MAX_GPUS_PER_MEMBER

# Rows of the node table. CPU in milli-cores, memory in MiB, GPUs in milli-GPU.
CPU: Final = 0
MEMORY: Final = 1
WHOLE: Final = 2
"""GPUs that nobody uses."""
WIDEST: Final = 3
"""Most free milli on one GPU."""
IDLE: Final = 4
"""Free milli over all GPUs."""
CPU_TOTAL: Final = 5
MEMORY_TOTAL: Final = 6
GPUS: Final = 7
CPU_INVERSE: Final = 8
"""`ONE // CPU_TOTAL`, so that a share costs a multiplication, not a division."""
MEMORY_INVERSE: Final = 9
LATENCY: Final = 10
"""Network cost of the node in 1/1,000 of the worst (S7's 60/30/10 form); 0 when nobody measures it."""
SLOT: Final = 11
"""First of `MAX_GPUS_PER_MEMBER` rows: free milli of each GPU; below zero when a GPU in use was taken away."""
ROWS: Final = SLOT + MAX_GPUS_PER_MEMBER

ONE: Final = 1 << 30
GPU_MILLI: Final = 1_000

# Columns of a request, int64 `[classes, REQUEST_COLUMNS]`.
NEED_CPU: Final = 0
NEED_MEMORY: Final = 1
NEED_GPUS: Final = 2
NEED_MILLI: Final = 3
"""Share of each GPU."""
NEED_WHOLE: Final = 4
"""Unused GPUs wanted: `gpus` when it wants whole ones, else 0."""
NEED_WIDEST: Final = 5
"""Free milli wanted on one GPU: its share when it wants any GPU, else 0."""
MEMBERS: Final = 6
ELIGIBLE: Final = 7
"""Row of the eligibility masks (GPU models, labels, schedulable)."""
WEIGHT_CPU: Final = 8
WEIGHT_MEMORY: Final = 9
WEIGHT_GPU: Final = 10
FAILED: Final = 11
"""1 once this class did not fit: free capacity only shrinks within a round, so it need not be tried again."""
DEMAND: Final = 12
"""How often the class was asked for (weight of a typical class)."""
REQUEST_COLUMNS: Final = 13

# Columns of a candidate job of a round, int64 `[jobs, JOB_COLUMNS]`.
JOB_CLASS: Final = 0
JOB_GROUP: Final = 1
"""Array whose throttle counts it, -1 for none."""
JOB_OFFSET: Final = 2
"""Its first row in the member output."""
JOB_RESERVES: Final = 3
"""1 when it has waited long enough to keep nodes for itself."""
JOB_STATUS: Final = 4
JOB_LANE: Final = 5
"""Lane of its queue and account (`quota`)."""
JOB_HEAD: Final = 6
"""Who waits for quota: where a `HEAD` is short, nobody behind it starts, nor behind a `PATIENT` one that others of this round
were quicker than."""
HEAD: Final = 1
PATIENT: Final = 2
JOB_COLUMNS: Final = 7

# Status of a candidate after the kernel.
UNTRIED: Final = 0
PLACED: Final = 1
NO_FIT: Final = 2
THROTTLED: Final = 3
OVER_QUOTA: Final = 4

# Parameters, int64 `[PARAMETERS]`.
CPU_PER_GPU: Final = 0
"""milli-cores per whole GPU that GPU jobs ask for: `r` of the stranded score."""
SHARE_CPU: Final = 1
SHARE_MEMORY: Final = 2
SHARE_LATENCY: Final = 3
PARAMETERS: Final = 4

INDEX_BITS: Final = 17
"""Bits of a node index in a packed key: 2^17 > `MAX_NODES`."""
IDLE_BITS: Final = 14
"""Bits of a node's idle milli: 2^14 >= 16 GPUs."""
MAX_CPU_PER_GPU: Final = 65_535
"""Keeps the stranded key within 62 bits."""
