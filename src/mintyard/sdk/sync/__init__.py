"""The synchronous client, made from `aio` by `scripts/make_sync_sdk.py`: change it there."""
