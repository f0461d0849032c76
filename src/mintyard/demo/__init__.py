"""Demo: the whole story on this machine, told by the commands that a user would type (`python -m mintyard.demo`).

Everything goes through the real command line in processes of its own, and is checked through the Python client; nothing of
the hub itself is imported here.
"""
