"""Access: from the Authorization header to a verified authority, or the one error that says why not (T2, H4)."""

from __future__ import annotations

from typing import Final

from mintyard.credentials import Validator
from mintyard.domain.errors import TokenMissing, TokenWrongAudience
from mintyard.domain.tokens.authority import Authority

_SCHEME: Final = b"bearer "


class Gate:
    """Verifies bearer tokens for one hub. What only the ledger and registry know is checked by the core, again
    and always."""

    def __init__(self, validator: Validator, hub: str) -> None:
        self.validator = validator
        self._hub = hub

    def admit(self, header: bytes | None, now: int) -> Authority:
        """The rights of the bearer at `now` (ns). Errors: `TokenMissing` and every other of the 401 family,
        `TokenWrongAudience` when the token names other clusters."""
        if header is None or header[: len(_SCHEME)].lower() != _SCHEME:
            raise TokenMissing()
        token = header[len(_SCHEME) :].strip()
        authority = self.validator.validate(token.decode("latin-1"), now)
        if authority.clusters is not None and self._hub not in authority.clusters:
            raise TokenWrongAudience(allowed=", ".join(authority.clusters) or "nothing", asked=self._hub)
        return authority
