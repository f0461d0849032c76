"""Agent: what stands beside a job on its node. Standard library only, and nothing of the rest of the package.

A fork server (`forkserver`) forks one supervisor (`supervisor`) per attempt; both outlive the hub. What they know they
write to the state folder (`records`), which is the only truth: sockets and pipes carry orders and hints.
Nothing heavier than the standard library may enter: a fork costs what its parent has loaded.
"""
