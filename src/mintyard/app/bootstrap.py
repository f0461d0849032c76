"""Bootstrap: the first start in a fresh folder. Founds the hub and leaves a token with which the local CLI works at once.

Every step may be repeated: a start that was cut off is taken up by the next one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import structlog

from mintyard.app.config import Config
from mintyard.app.link import Link
from mintyard.app.minting import MintingService, TokenWish
from mintyard.app.signing import SigningKeys
from mintyard.credentials import Context, CredentialStore
from mintyard.domain.commands import Found
from mintyard.domain.errors import AlreadyExists, from_problem
from mintyard.domain.ids import ROOT
from mintyard.domain.limits import MAX_TOKEN_LIFE_DAYS
from mintyard.domain.replies import Refusal
from mintyard.domain.tokens.authority import ROLES
from mintyard.domain.units import MS_PER_HOUR, NS_PER_MS

_log = structlog.get_logger(__name__)
ADMIN_CONTEXT: Final = "admin"
ADMIN_FOLDER: Final = "admin"
"""Folder of the credentials file within the hub's folder; `MINTYARD_HOME` may point there."""
_ADMIN_LIFE_DAYS: Final = MAX_TOKEN_LIFE_DAYS - 1


def admin_credentials(config: Config) -> CredentialStore:
    """Where the first administrator's token is kept (0600)."""
    return CredentialStore(config.path / ADMIN_FOLDER)


def adopt_admin(config: Config, url: str = "") -> bool:
    """Make the administrator's token the one that this user's CLI takes, unless the user has one for this hub already.

    Whether it was written. For `mintyard up` on a person's machine; raises what the credentials store raises."""
    context = admin_credentials(config).contexts().get(ADMIN_CONTEXT)
    own = CredentialStore()
    if context is None or (
        (known := own.contexts().get(config.name)) is not None and known.token == context.token
    ):
        return False
    own.save(config.name, Context(url or config.public_url, context.token, context.keys))
    return True


def prepare_folder(config: Config) -> None:
    """Make the hub's folders, closed to others."""
    for folder in (config.path, config.run_folder, _store_folder(config), config.path / "read_model"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(config.run_folder, 0o700)


def _store_folder(config: Config) -> Path:
    return config.path / "journal"


async def bootstrap(config: Config, keys: SigningKeys, link: Link, now: int) -> bool:
    """Found the hub when it has no name yet, and write an administrator's token when the folder has none.

    Whether the hub was founded now. `link` must lead; raises its errors and what the core refuses with."""
    answer = await link.send(Found(config.name, config.currency))
    founded = not isinstance(answer.reply, Refusal)
    if isinstance(answer.reply, Refusal) and answer.reply.problem.code != AlreadyExists.code:
        raise from_problem(answer.reply.problem)
    store = admin_credentials(config)
    if ADMIN_CONTEXT not in store.contexts():
        wish = TokenWish(
            account=ROOT,
            scopes=frozenset(ROLES["admin"]),
            name="admin",
            expires_at=now + _ADMIN_LIFE_DAYS * 24 * MS_PER_HOUR * NS_PER_MS,
        )
        minted = await MintingService(keys, link, lambda: now).mint(None, wish)
        store.save(ADMIN_CONTEXT, Context(config.public_url, minted.token, keys.key_set))
        _log.info("administrator's token written", path=str(store.path), founded=founded)
    return founded
