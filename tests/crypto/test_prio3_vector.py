"""A published Prio3 proof over Field128, made and checked with our field, transform and evaluation.

The vector is test_vec/vdaf/Prio3Histogram_0.json of cfrg/draft-irtf-cfrg-vdaf at commit
1476a1924d98413b49999cc2ce405af19a73f8d8 (version byte 12): four buckets, chunks of two, two shares.
Its proof is that of the general construction of BBCGGI19 (theorem 4.3), of which `flp` is the case
of squares: wires interpolated over roots of unity behind a random first value, the gadget applied
to the wires' polynomials, and all of it opened at one point. What makes its numbers is the draft's,
in plain Python here.
"""

from __future__ import annotations

import numpy as np

from tests.support.reference.turboshake_reference import turboshake128
from torchfsl.crypto import field128

P = field128.MODULUS
CONTEXT, NONCE = b"some application", bytes(range(16))
VERIFY_KEY, RANDOM = bytes(range(32)), bytes(range(128))
MEASUREMENT, SHARES, CHUNK, CALLS, WIRES = [0, 0, 1, 0], 2, 2, 2, 4
PROOF_VALUES = WIRES + 7
MEAS_SHARE, PROOF_SHARE, JOINT, PROVE, QUERY, JOINT_SEED, JOINT_PART = range(1, 8)

LEADER = bytes.fromhex(
    "e720f2d625ee3cabce61d583c8c4054e82e8487025764348020264792b3d100f"
    "0d8c76f65caf04ee0e22373be0d61ac5fa6e2f2866078b31b90537e24416fad1"
    "d878d8b7b93954e80a0a008ae08698e74409c646c5089bf508d7b32589a4442c"
    "84c94b77dd83e10d4cbdcb0a8e9084ba58812ef6c40e078587f3c82140facd7e"
    "6a4d6942338c87ab5336de984fca87d6315bd0cd55be021a5e8c95cb2f58d403"
    "209e06a16b0e535a34828e56812b7a3f995ffd32815553c38fc0ce8a7963e975"
    "8fc2a45b02b69ec05eb19de856357e3a3fd3063b2501f1c7e5791e3350f60a5e"
    "870c1d8d239707d61f61f6f3f8413185"
    "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f"
)
PUBLIC = bytes.fromhex(
    "064ddc2301a2ff2176338dd52a09fdadd442cddcbe5d10dafe0d92551d81eac7"
    "c27dda399f3c8341c7476370573e51b6ebe601061807bb886fc55c2161ce436e"
)
AGREED = bytes.fromhex("915cca74703d352a8e12e7441aa3896efbd633bf8eacd9a101ab922f6481404b")
VERIFIERS = (
    bytes.fromhex(
        "d94d1f36d8d2f9867208928069335f0957497c6df0fe6568d4304b27f51456ac"
        "f8093e765dfe404541c27935c03bf8677569234022700212e1112ad5b4a47412"
        "6b01b5b1be78d897a9e616bcb21c5644fad4b87f09bc65f0c46ec41e29b19ffd"
    ),
    bytes.fromhex(
        "28b2e0c9272d067971f76d7f96cca0f6bef7d43878716b3fcee1d230515956ac"
        "dd7ced66a61a897483b4b233e4fe32b48babf43d070fc14b1c7fc4e1a386fd22"
        "3f58eec1544973c9f39e871c48543e979da23642e48ae655de8c7e6b008ab43b"
    ),
)


def expand(seed: bytes, usage: int, binder: bytes, size: int) -> bytes:
    """XofTurboShake128 under the draft's separation of domains."""
    separation = bytes([12, 0]) + (4).to_bytes(4, "big") + usage.to_bytes(2, "big") + CONTEXT
    head = len(separation).to_bytes(2, "little") + separation + bytes([len(seed)]) + seed
    return turboshake128(head + binder, 1, size)


def elements(seed: bytes, usage: int, binder: bytes, count: int) -> list[int]:
    """The stream's first elements below p; two spare ones stand for those that are not."""
    stream = expand(seed, usage, binder, 16 * (count + 2))
    words = [int.from_bytes(stream[i : i + 16], "little") for i in range(0, len(stream), 16)]
    return [word for word in words if word < P][:count]


def shares() -> tuple[tuple[list[int], list[int]], tuple[list[int], list[int]]]:
    """Of leader and helper: share of the measurement and of the proof."""
    leader = field128.integers(field128.checked(LEADER[:-32]))
    helper_seed = RANDOM[:32]
    helper = (
        elements(helper_seed, MEAS_SHARE, b"\x01", len(MEASUREMENT)),
        elements(helper_seed, PROOF_SHARE, b"\x01\x01", PROOF_VALUES),
    )
    return (leader[: len(MEASUREMENT)], leader[len(MEASUREMENT) :]), helper


def total(ours: list[int], theirs: list[int]) -> list[int]:
    """Both shares added."""
    return field128.integers(field128.add(field128.words(ours), field128.words(theirs)))


def joint_randomness() -> list[int]:
    """Bound to both shares; meets the public share and the message of the vector on the way."""
    blinds = RANDOM[64:96], RANDOM[32:64]
    parts = b"".join(
        expand(
            blind, JOINT_PART, bytes([party]) + NONCE + field128.to_bytes(field128.words(share)), 32
        )
        for party, (blind, (share, _)) in enumerate(zip(blinds, shares(), strict=True))
    )
    assert parts == PUBLIC
    seed = expand(bytes(32), JOINT_SEED, parts, 32)
    assert seed == AGREED
    return elements(seed, JOINT, b"\x01", CALLS)


def gadget(inputs: list[int]) -> int:
    """Sum of the products of neighbours."""
    return sum(a * b for a, b in zip(inputs[::2], inputs[1::2], strict=True)) % P


def wires(measurement: list[int], first: list[int], parties: int) -> np.ndarray:
    """Coefficients `[4, WIRES]` of the wires: a random value, then what each call takes."""
    part = pow(parties, -1, P)
    table = np.zeros((4, WIRES), dtype=object)
    table[0] = first
    for call, r in enumerate(joint_randomness()):
        for j, value in enumerate(measurement[CHUNK * call : CHUNK * (call + 1)]):
            table[1 + call, 2 * j] = pow(r, j + 1, P) * value % P
            table[1 + call, 2 * j + 1] = (value - part) % P
    return field128.interpolate(table)


def test_shares_are_those_of_the_measurement() -> None:
    (leader, _), (helper, _) = shares()
    assert total(leader, helper) == MEASUREMENT


def test_the_proof_is_made_as_published() -> None:
    (_, leader), (_, helper) = shares()
    random = elements(RANDOM[96:], PROVE, b"\x01", WIRES)
    padded = np.zeros((8, WIRES), dtype=object)
    padded[:4] = wires(MEASUREMENT, random, 1)
    values = field128.transform(padded, field128.root_of_unity(8))
    products = np.array([[gadget(list(row))] for row in values], dtype=object)
    polynomial = [int(value) for value in field128.interpolate(products)[:, 0]]
    assert polynomial.pop() == 0  # of degree 6
    assert random + polynomial == total(leader, helper)


def test_both_verifiers_are_as_published_and_accept() -> None:
    weights = elements(VERIFY_KEY, QUERY, b"\x01" + NONCE, 3)
    point, root = weights.pop(), field128.root_of_unity(4)
    said = []
    for (measurement, proof), published in zip(shares(), VERIFIERS, strict=True):
        polynomial = proof[WIRES:]
        outputs = [field128.evaluate(polynomial, pow(root, call, P)) for call in (1, 2)]
        checks = [sum(outputs), sum(measurement) - pow(SHARES, -1, P)]
        columns = wires(measurement, proof[:WIRES], SHARES).T
        verifier = [
            sum(w * c for w, c in zip(weights, checks, strict=True)) % P,
            *(field128.evaluate([int(c) for c in column], point) for column in columns),
            field128.evaluate(polynomial, point),
        ]
        assert field128.to_bytes(field128.words(verifier)) == published
        said.append(verifier)
    first, *opened, last = total(*said)
    assert first == 0
    assert gadget(opened) == last
