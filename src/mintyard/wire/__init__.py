"""Wire types: what crosses HTTP and what a job payload holds. Standard library, msgspec and `domain.units`/`errors` only,
so that the client stays light."""
