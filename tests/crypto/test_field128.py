"""The field modulo 2**128 - 7 * 2**66 + 1: roots of unity, transforms, bytes, uniform draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchfsl.crypto import field128, kdf
from torchfsl.errors import DecodeError

P = field128.MODULUS
EDGES = [0, 1, P - 1, P - 2, (1 << 64) - 1, 1 << 64, P >> 1, (P >> 1) + 1, P - (1 << 64)]
numbers = st.integers(0, P - 1) | st.sampled_from(EDGES)


def test_the_modulus_is_prime() -> None:
    """Proth: p = k 2**66 + 1 with odd k < 2**66, and 7 has a power that is -1."""
    k = (P - 1) >> 66
    assert k % 2 == 1
    assert k < 1 << 66
    assert pow(7, (P - 1) // 2, P) == P - 1


def test_roots_of_unity_have_their_order() -> None:
    assert pow(7, 4611686018427387897, P) == field128.GENERATOR
    for log in (0, 1, 2, 9, 66):
        root = field128.root_of_unity(1 << log)
        assert pow(root, 1 << log, P) == 1
        assert log == 0 or pow(root, 1 << (log - 1), P) == P - 1


@pytest.mark.parametrize("size", [1, 2, 8, 32])
def test_a_transform_evaluates_at_all_roots_and_comes_back(size: int) -> None:
    coefficients = field128.integers(field128.uniform(bytes(16), 3 * size))
    table = np.array(coefficients, dtype=object).reshape(size, 3)
    root = field128.root_of_unity(size)
    values = field128.transform(table, root)
    for k in range(size):
        point = pow(root, k, P)
        for j in range(3):
            naive = sum(int(c) * pow(point, i, P) for i, c in enumerate(table[:, j])) % P
            assert values[k, j] == naive == field128.evaluate(table[:, j].tolist(), point)
    assert (field128.interpolate(values) == table).all()


@given(st.lists(st.tuples(numbers, numbers), max_size=20))
def test_sums_and_differences_are_reduced(pairs: list[tuple[int, int]]) -> None:
    a, b = (field128.words(side) for side in ([x for x, _ in pairs], [y for _, y in pairs]))
    assert field128.integers(field128.add(a, b)) == [(x + y) % P for x, y in pairs]
    assert field128.integers(field128.subtract(a, b)) == [(x - y) % P for x, y in pairs]
    assert field128.integers(field128.negative(a)) == [-x % P for x, _ in pairs]


def test_bytes_come_back_and_wrong_ones_are_refused() -> None:
    values = [0, 1, P - 1]
    data = field128.to_bytes(field128.words(values))
    assert data[16:32] == b"\1" + bytes(15)
    assert field128.integers(field128.checked(memoryview(data))) == values
    with pytest.raises(DecodeError, match="whole number"):
        field128.checked(data[:-1])
    for wrong in (P, (1 << 128) - 1):
        with pytest.raises(DecodeError, match="modulus"):
            field128.checked(data + wrong.to_bytes(16, "little"))


def test_draws_are_prefixes_and_blocks_from_the_modulus_on_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    five, nine = (field128.uniform(b"k" * 16, count) for count in (5, 9))
    assert np.array_equal(five, nine[:5])
    blocks = [P, 3, (1 << 128) - 1, P - 1, 4, P + 7, 5]

    def stream(_: bytes, size: int) -> np.ndarray:  # type: ignore[type-arg]
        data = b"".join(x.to_bytes(16, "little") for x in blocks)
        return np.frombuffer((data * (size // len(data) + 1))[:size], np.uint8)

    monkeypatch.setattr(kdf, "stream", stream)
    assert field128.integers(field128.uniform(b"k" * 16, 3)) == [3, P - 1, 4]


OUT_SHARES = (
    ("4a65380efb23968ec4e286f586b75534", "b79ac7f104dc69711f1d790a7948aacb"),
    ("05694883d3c404f1d8b47e9fbd549b54", "fd96b77c2c3bfb0e0b4b816042ab64ab"),
    ("7f3cf5c57cf6d0cbf34499d01d22d658", "84c30a3a83092f34f0ba662fe2dd29a7"),
    ("5a56c8bd487dbe2b10b67953d410c35c", "aaa93742b78241d4d34986ac2bef3ca3"),
)
VERIFIERS = (
    "30851472f3bdc07a4959bdfad085ddda3281c00d82d49622b634b22d1eef6d60"
    "f1ad80968db3f79ad81b0118fc88244fdebcb8c5155c84c275b9198d451faed3"
    "52503eab54be0e1edc54ef2bb64e9a14076c4d7b8c45b64b08f2aef8bf0d0f14"
    "fe2b765a5af438ad81287fa54dc69a6f9090d54ef8b8326c7bb1de86da0a136c"
    "e01be313a26b3bf6f806ae40d5b8a42fa7c37fbaa057b0be8dbfaf8deb60dfe8"
    "462e47f72e56307e875305f445761211a216f0254108c6a2cf9026513be0552b"
    "8b3c93295aba7032a4e586e03a9e3032612cc0a5253c96ea0f141eed61a79558"
    "67f8d0e793e8db4418a504d33aa7f0e73705ace21ea56a0ad9ec9441f9e2b349"
    "d13349f0a6fe33ef5dbbb2e6fedf3d4697233f6c10eb723fe20565fe5f8ff759"
    "aeeb86681f49ad0ffcdee9e3a9ec2a90b365eab313a08a9e9867b26ff583e7a3",
    "d17aeb8d0c423f859aa642052f7a2225996887bbb8c5e974168e8d32e89774af"
    "cf60c3ce65047c215a8ecd78cad6516556cdbdf20bea9d316a1662c8a2374c0f"
    "766297cf9f7c1df20768eef0302af42e566a04c54032235e7aa81cf952829e13"
    "36a7bada320159a2e224bacef11ba00aee542fe815df02579733deb63f8d3212"
    "03e4190b73e2738340da8b81d7b229f999c841a5d07cd16fe4d30824dd3ead19"
    "06a4aeb88f360ec3388d7bf7835c9b4a01e087c01140e705a48902ec50684b2a"
    "5c8c3d07dcff55afc8a2a278e0993b9399e63b3729a507b636d2b777b4d09a1e"
    "381331cffcf0259930e14973f1d4795b4222b39302830134199c166cd3d020a7"
    "486c4be8d29b37fabcf73229c95d3ee7ae211b08e5e02e1c34316d92e6fafdc5"
    "698629f9db0d7ef317efcfcc20bc1c61a25ac48e8b2090ad4b965d239f3fdd43",
)


def test_published_shares_of_prio3_add_up_and_its_proof_fits() -> None:
    """Prio3SumVec_0.json of the VDAF draft: values 0, 1, 2, 3, and a verifier of 9 products."""
    for value, shares in enumerate(OUT_SHARES):
        first, second = (field128.checked(bytes.fromhex(share)) for share in shares)
        assert field128.integers(field128.add(first, second)) == [value]
    ours, theirs = (field128.checked(bytes.fromhex(share)) for share in VERIFIERS)
    output, *wires, at_point = field128.integers(field128.add(ours, theirs))
    assert output == 0
    products = [x * y for x, y in zip(wires[0::2], wires[1::2], strict=True)]
    assert len(products) == 9
    assert sum(products) % P == at_point
