"""Credentials: compute tokens as Biscuits - mint, narrow offline, verify from public keys, read, seal, keep (T1-T6).

Used by hub, gateway, agent, SDK and CLI, so only the standard library, msgspec, biscuit_auth and the pure domain may
enter. `envelope` is bytes, `grammar` meaning, `tokens` the verbs, `keys` the ring, `cache` the verifier that remembers,
`store` the client's file. What is left to spend is the ledger's business.
"""

from mintyard.credentials.cache import Validator
from mintyard.credentials.envelope import PATTERN, PREFIX, looks_like_token
from mintyard.credentials.grammar import Origin, Restrictions
from mintyard.credentials.keys import (
    KeyRing,
    KeySet,
    KeyState,
    SigningKey,
    VerifyingKey,
    decode_key_set,
    encode_key_set,
)
from mintyard.credentials.store import Context, Credential, CredentialStore
from mintyard.credentials.tokens import (
    SERIAL_BYTES,
    BlockView,
    Inspection,
    Minted,
    inspect,
    mint,
    mint_alike,
    narrow,
    read,
    seal,
    verify,
)

__all__ = [
    "PATTERN",
    "PREFIX",
    "SERIAL_BYTES",
    "BlockView",
    "Context",
    "Credential",
    "CredentialStore",
    "Inspection",
    "KeyRing",
    "KeySet",
    "KeyState",
    "Minted",
    "Origin",
    "Restrictions",
    "SigningKey",
    "Validator",
    "VerifyingKey",
    "decode_key_set",
    "encode_key_set",
    "inspect",
    "looks_like_token",
    "mint",
    "mint_alike",
    "narrow",
    "read",
    "seal",
    "verify",
]
