"""REST: the hub's door for people and programs (U1, H4, O1). It verifies, decodes and asks; it decides nothing.

Whatever changes the hub goes through the link as a command, whatever is read comes from the read model, the
planner or a log. No balance, queue or right may be computed here, and no bearer token may leave this room
except in the answer that mints it."""
