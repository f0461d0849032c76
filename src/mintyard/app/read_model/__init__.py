"""The read model: SQL tables projected from the journal, and the typed queries that the API calls.

It holds nothing that the journal doesn't: it can be deleted and rebuilt. No decision may be taken from it.
"""

from mintyard.app.read_model.database import ReadModel, open_read_model

__all__ = ["ReadModel", "open_read_model"]
