"""The asynchronous client. The synchronous one in `sync` is made from these modules by `scripts/make_sync_sdk.py`."""
