"""TurboSHAKE128 in plain Python (RFC 9861): Keccak-p[1600, 12] as a sponge of rate 168."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_RATE = 168


def _round_constants() -> list[int]:
    """The constants of all 24 rounds, from the linear shift register of FIPS 202, section 3.2.5."""
    constants, state = [], 1
    for _ in range(24):
        constant = 0
        for j in range(7):
            constant |= (state & 1) << ((1 << j) - 1)
            state = (state << 1) ^ (0x171 if state >> 7 else 0)
        constants.append(constant)
    return constants


def _rotations() -> dict[tuple[int, int], int]:
    """How far the rho step turns each lane (FIPS 202, section 3.2.2)."""
    offsets, x, y = {(0, 0): 0}, 1, 0
    for t in range(24):
        offsets[x, y] = (t + 1) * (t + 2) // 2 % 64
        x, y = y, (2 * x + 3 * y) % 5
    return offsets


_CONSTANTS, _ROTATIONS = _round_constants(), _rotations()


def _turn(lane: int, by: int) -> int:
    return (lane << by | lane >> (64 - by)) & _MASK if by else lane


def permute(state: bytes) -> bytes:
    """Keccak-p[1600, 12]: the last twelve of the 24 rounds of Keccak-f[1600]."""
    lanes = {
        (x, y): int.from_bytes(state[8 * (x + 5 * y) : 8 * (x + 5 * y) + 8], "little")
        for x in range(5)
        for y in range(5)
    }
    for constant in _CONSTANTS[12:]:
        column = [lanes[x, 0] ^ lanes[x, 1] ^ lanes[x, 2] ^ lanes[x, 3] ^ lanes[x, 4]
                  for x in range(5)]  # fmt: skip
        change = [column[(x - 1) % 5] ^ _turn(column[(x + 1) % 5], 1) for x in range(5)]
        moved = {
            (y, (2 * x + 3 * y) % 5): _turn(lane ^ change[x], _ROTATIONS[x, y])
            for (x, y), lane in lanes.items()
        }
        lanes = {
            (x, y): lane ^ (~moved[(x + 1) % 5, y] & moved[(x + 2) % 5, y] & _MASK)
            for (x, y), lane in moved.items()
        }
        lanes[0, 0] ^= constant
    return b"".join(lanes[x, y].to_bytes(8, "little") for y in range(5) for x in range(5))


def turboshake128(message: bytes, domain: int, length: int) -> bytes:
    """`length` bytes of TurboSHAKE128 of `message` under the domain byte, 1 to 127."""
    padded = message + bytes([domain])
    padded += bytes(-len(padded) % _RATE)
    padded = padded[:-1] + bytes([padded[-1] ^ 0x80])
    state = bytes(200)
    for start in range(0, len(padded), _RATE):
        block = padded[start : start + _RATE] + bytes(200 - _RATE)
        state = permute(bytes(a ^ b for a, b in zip(state, block, strict=True)))
    out = state[:_RATE]
    while len(out) < length:
        state = permute(state)
        out += state[:_RATE]
    return out[:length]
