"""Tokens, hostile tokens and keys for the credential tests."""

import biscuit_auth
from hypothesis import strategies as st

from mintyard.credentials import KeySet, KeyState, Restrictions, SigningKey, VerifyingKey, mint
from mintyard.credentials.envelope import Envelope, decode_text, encode_text, join, split
from mintyard.credentials.keys import key_id, verifier
from mintyard.domain.tokens.authority import ROLES, Caps, Scope
from mintyard.domain.units import NS_PER_S, Unit

NOW = 1_796_000_000 * NS_PER_S
DAY = 86_400 * NS_PER_S


def make_key() -> tuple[SigningKey, VerifyingKey]:
    pair = biscuit_auth.KeyPair()
    public = bytes(pair.public_key.to_bytes())
    name = f"{key_id(public):08x}"
    private = bytes(pair.private_key.to_bytes())
    return SigningKey(name, private), VerifyingKey(name, public.hex(), KeyState.ACTIVE)


KEY, PUBLIC = make_key()
KEYS = KeySet(1, (PUBLIC,))


def make(**changes) -> str:
    return make_minted(**changes).token


def make_minted(key=KEY, **changes):
    asked = {
        "account": "acme/vision",
        "serial": bytes(16),
        "scopes": ROLES["member"],
        "issued_at": NOW,
        "expires_at": NOW + DAY,
        **changes,
    }
    return mint(key, **asked)


def take_apart(token: str) -> Envelope:
    return split(decode_text(token))


def put_together(envelope: Envelope, **changes) -> str:
    """Token text of a changed envelope, with a right checksum."""
    e = envelope._replace(**changes)
    return encode_text(join(e.key_id, e.blocks, e.proof, sealed=e.sealed))


def parse(token: str) -> biscuit_auth.Biscuit:
    return biscuit_auth.Biscuit.from_bytes(decode_text(token), verifier(PUBLIC.public))


def append(token: str, source: str, parameters: dict | None = None) -> str:
    """What any holder can do with the library: append any Datalog, properly signed."""
    block = biscuit_auth.BlockBuilder(source, parameters or {})
    return encode_text(bytes(parse(token).append(block).to_bytes()))


def sign_first(source: str, parameters: dict | None = None) -> str:
    """A token whose first block is any Datalog, signed by the hub's key."""
    builder = biscuit_auth.BiscuitBuilder(source, parameters or {})
    builder.set_root_key_id(int(KEY.key, 16))
    return encode_text(bytes(builder.build(KEY.biscuit()).to_bytes()))


NAMES = st.sampled_from(["alpha", "beta", "gamma.x", "meta-llama/Llama-3.1-8B:fp8@q4+x", "0"])
AMOUNTS = st.one_of(st.integers(0, 10), st.integers(0, 2**62))
ACCOUNTS = st.sampled_from(
    ["acme", "acme/vision", "acme/vision/ann", "acme/vision/bob", "acme/visio", "other", "/"]
)
INSTANTS = st.integers(NOW - 3 * NS_PER_S, NOW + 3 * NS_PER_S)


def _lists(members):
    return st.none() | st.lists(members, min_size=1, max_size=4, unique=True).map(tuple)


RESTRICTIONS = st.builds(
    Restrictions,
    account=st.none() | ACCOUNTS,
    scopes=st.none() | st.frozensets(st.sampled_from(list(Scope)), min_size=1),
    expires_at=st.none() | INSTANTS,
    not_before=st.none() | INSTANTS,
    caps=st.builds(Caps, st.none() | AMOUNTS, st.none() | AMOUNTS, st.none() | AMOUNTS),
    ceilings=st.dictionaries(st.sampled_from(list(Unit)), AMOUNTS, max_size=3),
    clusters=_lists(NAMES),
    models=_lists(NAMES),
    jobs=_lists(st.integers(1, 5)),
)
