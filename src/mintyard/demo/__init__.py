"""Demo: the whole story on this machine, told by the commands that a user would type (`python -m mintyard.demo`).

Everything goes through the real command line in processes of its own; nothing of the hub is imported here.
"""
