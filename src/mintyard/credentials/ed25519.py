"""Ed25519 signing (RFC 8032) for one purpose: the seal of a token, which biscuit-python can check but not make.

It is slow (milliseconds) and not constant in time, which is bearable only because the key is a block's throw-away
secret that signs once and is then forgotten. Nothing else may be signed here; verification stays with the library.
"""

from __future__ import annotations

from hashlib import sha512
from typing import Final

_P: Final = 2**255 - 19
_L: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, _P - 2, _P) % _P

_Point = tuple[int, int, int, int]
"""Extended coordinates X, Y, Z, T with x = X/Z, y = Y/Z, xy = T/Z."""


def _add(p: _Point, q: _Point) -> _Point:
    a = (p[1] - p[0]) * (q[1] - q[0]) % _P
    b = (p[1] + p[0]) * (q[1] + q[0]) % _P
    c = 2 * p[3] * q[3] * _D % _P
    d = 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % _P, g * h % _P, f * g % _P, e * h % _P)


def _multiply(scalar: int, point: _Point) -> _Point:
    result: _Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            result = _add(result, point)
        point = _add(point, point)
        scalar >>= 1
    return result


def _compress(point: _Point) -> bytes:
    inverse = pow(point[2], _P - 2, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


_BASE_Y: Final = 4 * pow(5, _P - 2, _P) % _P
_BASE_X: Final = 15112221349535400772501151409588531511454012693041857206046113283949847762202
_BASE: Final[_Point] = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)


def sign(private: bytes, message: bytes) -> bytes:
    """The 64-byte signature of `message` by the 32-byte private key (RFC 8032, section 5.1.6)."""
    digest = sha512(private).digest()
    scalar = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | 1 << 254
    public = _compress(_multiply(scalar, _BASE))
    nonce = int.from_bytes(sha512(digest[32:] + message).digest(), "little") % _L
    commitment = _compress(_multiply(nonce, _BASE))
    challenge = int.from_bytes(sha512(commitment + public + message).digest(), "little") % _L
    return commitment + ((nonce + challenge * scalar) % _L).to_bytes(32, "little")
