"""Vectors of the primitives, from the slow reference and from formulas written out here.

Nothing of torchfsl is asked but its labels.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.support.reference import checks_reference, dpf_reference
from torchfsl.crypto import kdf

Json = dict[str, Any]

MODULUS = 2**32 - 5
"""Of the field of `torchfsl.crypto.field`."""


def drawn(label: str, size: int) -> bytes:
    """Bytes that look random and are the same on every run."""
    return hashlib.shake_128(label.encode()).digest(size)


def state_of(label: str, bit: int) -> bytes:
    """A root state with the given control bit."""
    return dpf_reference.make_state(drawn(label, 16), bit)


def framed(*parts: bytes) -> bytes:
    """Each part behind its length."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def derived(secret: bytes, label: bytes, context: bytes, size: int) -> bytes:
    """HKDF-SHA256 with framed label and context as info."""
    return HKDF(hashes.SHA256(), size, salt=None, info=framed(label, context)).derive(secret)


def streamed(key: bytes, size: int) -> bytes:
    """AES-128 in counter mode from zero."""
    return Cipher(algorithms.AES128(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def hexes(parts: Iterable[bytes]) -> list[str]:
    """Each in hexadecimal digits."""
    return [part.hex() for part in parts]


def corrections(words: Sequence[Any]) -> Json:
    """The correction words of a tree."""
    packed_words = [word.packed().hex() for word in words]
    return {"correction_words": packed_words, "right_bits": [word.right_bit for word in words]}


def kdf_vectors() -> Json:
    """Labels, derived keys, digests and streams."""
    labels = {n: getattr(kdf, n).decode() for n in sorted(dir(kdf)) if n.startswith("LABEL_")}
    cases = []
    for name, label in labels.items():
        for size in (16, 40):
            secret, context = drawn(f"secret {name}", 16), drawn(f"context {name}", size)
            case = {"label": label, "secret": secret.hex(), "context": context.hex(), "size": size}
            case["derived"] = derived(secret, label.encode(), context, size).hex()
            case["digest"] = hashlib.sha256(framed(label.encode(), secret, context)).hexdigest()
            cases.append(case | {"stream": streamed(secret, size + 1).hex()})
    return {"labels": labels, "cases": cases}


def tree_vectors() -> Json:
    """Trees of several depths; every leaf of both parties."""
    cases = []
    for num_leaves, alpha in ((1, 0), (2, 0), (2, 1), (3, 2), (5, 4), (8, 3), (13, 12), (33, 32)):
        name = f"tree {num_leaves} {alpha}"
        key, depth = drawn(f"key {name}", 16), dpf_reference.depth_of(num_leaves)
        roots = [state_of(f"{name} {party}", party) for party in (0, 1)]
        words, *_ = dpf_reference.tree_gen(key, roots[0], roots[1], alpha, depth)
        leaves = [
            [dpf_reference.leaf_state(key, root, words, leaf).hex() for leaf in range(num_leaves)]
            for root in roots
        ]
        case = {"key": key.hex(), "roots": hexes(roots), "alpha": alpha, "num_leaves": num_leaves}
        cases.append(case | corrections(words) | {"leaves": leaves})
    return {"cases": cases}


def hint_vectors() -> Json:
    """Hints of both signs, all ring widths, with and without early termination."""
    cases = []
    for bits in (16, 24, 32, 48, 64, 128):
        for nu, slot, values_a_row in ((0, 0, 1), (0, 0, 5), (2, 3, 2)):
            name, width = f"hint {bits} {nu} {values_a_row}", bits // 8
            key, sign = drawn(f"key {name}", 16), (bits // 8 + nu) % 2
            leaves = [state_of(f"{name} {p}", p ^ sign) for p in (0, 1)]
            values = drawn(f"values {name}", values_a_row * width)
            hint = dpf_reference.hint_gen(key, *leaves, values, slot, nu, width)
            shares = [
                dpf_reference.leaf_value(key, leaf, hint, party, width).hex()
                for party, leaf in enumerate(leaves)
            ]
            case = {"key": key.hex(), "ring_bits": bits, "nu": nu, "slot": slot}
            case |= {"leaves": hexes(leaves), "values": values.hex(), "hint": hint.hex()}
            cases.append(case | {"shares": shares})
    return {"cases": cases}


def check_vectors() -> Json:
    """Check words, and tags of answers over a small table."""
    cases = []
    shapes = ((0, 0, 1, 16), (7, 2, 3, 5), (300, 4, 6, 40), (5, 1, 2, 64), (6, 2, 9, 150))
    for tree, leaf, num_leaves, row_bytes in shapes:
        name = f"check {tree} {leaf}"
        key, depth = drawn(f"key {name}", 16), dpf_reference.depth_of(num_leaves)
        roots = [state_of(f"{name} {party}", party) for party in (0, 1)]
        words, *leaves = dpf_reference.tree_gen(key, roots[0], roots[1], leaf, depth)
        rows = [drawn(f"row {name} {i}", row_bytes) for i in range(num_leaves)]
        row_key = drawn(f"row key {name}", 16)
        digests = [checks_reference.row_digest(row_key, row) for row in rows]
        tags = []
        for root in roots:
            states = [dpf_reference.leaf_state(key, root, words, i) for i in range(num_leaves)]
            tags.append(checks_reference.tag(key, states, digests).hex())
        case = {"key": key.hex(), "tree": tree, "leaf": leaf, "roots": hexes(roots)}
        case |= {"rows": hexes(rows), "leaves": hexes(leaves), **corrections(words)}
        case["check_word"] = checks_reference.check_word(key, *leaves, tree, leaf).hex()
        case |= {"tags": tags, "row_key": row_key.hex(), "digests": hexes(digests)}
        cases.append(case)
    return {"cases": cases}


def bit_vectors() -> Json:
    """Answers by one bit a row, over tables of one block of 128 rows and of more."""
    cases = []
    for row, num_rows, row_bytes in ((0, 1, 16), (128, 129, 5), (77, 300, 3), (383, 384, 1)):
        name, leaf, num_leaves = f"bits {row}", row // 128, -(-num_rows // 128)
        key, key_bits = drawn(f"key {name}", 16), drawn(f"key bits {name}", 16)
        roots = [state_of(f"{name} {party}", party) for party in (0, 1)]
        words, *leaves = dpf_reference.tree_gen(
            key, roots[0], roots[1], leaf, dpf_reference.depth_of(num_leaves)
        )
        word = dpf_reference.bit_word(key_bits, *leaves, row % 128)
        rows = [drawn(f"row {name} {i}", row_bytes) for i in range(num_rows)]
        answers = []
        for root in roots:
            states = [dpf_reference.leaf_state(key, root, words, i) for i in range(num_leaves)]
            answers.append(dpf_reference.bit_answer(key_bits, states, word, rows).hex())
        case = {"key": key.hex(), "key_bits": key_bits.hex(), "row": row, "roots": hexes(roots)}
        case |= {"rows": hexes(rows), **corrections(words), "word": word.hex()}
        cases.append(case | {"answers": answers})
    return {"cases": cases}


def permutation_vectors() -> Json:
    """Public permutations: rows in the stable order of 64-bit keys."""
    cases = []
    for m, label in ((1, "rows"), (2, "rows"), (40, "rows"), (40, "tables \u00e9")):
        seed = drawn(f"hash seed {m}", 32)
        table = []
        for i in range(3):
            context = framed(label.encode(), bytes([i]), m.to_bytes(8, "little"))
            data = streamed(derived(seed, b"torchfsl permutation", context, 16), 8 * m)
            keys = [int.from_bytes(data[8 * x : 8 * x + 8], "little") for x in range(m)]
            table.append(sorted(range(m), key=keys.__getitem__))
        cases.append({"hash_seed": seed.hex(), "label": label, "m": m, "permutations": table})
    return {"cases": cases}


def matching_vectors() -> Json:
    """Matchings with augmenting paths, and with items left out."""
    cases = []
    for seed, (num_items, bins_each) in enumerate(((0, 1), (3, 1), (9, 2), (12, 5), (40, 14))):
        draw = random.Random(seed)
        items = [
            tuple(i * bins_each + draw.randrange(bins_each) for i in range(3))
            for _ in range(num_items)
        ]
        place = dpf_reference.match(items, 3 * bins_each)  # type: ignore[arg-type]
        cases.append({"num_bins": 3 * bins_each, "candidates": items, "bins": place})
    return {"cases": cases}


def packed(numbers: list[int]) -> str:
    """Numbers of the field as they travel: four little-endian bytes each."""
    return b"".join(number.to_bytes(4, "little") for number in numbers).hex()


def field_vectors() -> Json:
    """Matrix products modulo p, interpolation from nodes to points, and uniform draws."""
    draw = random.Random(0)
    edges = (0, 1, 5, 2**16 - 1, 2**16, 2**31, MODULUS - 2, MODULUS - 1)

    def numbers(count: int) -> list[int]:
        return [
            draw.choice(edges) if draw.random() < 0.25 else draw.randrange(MODULUS)
            for _ in range(count)
        ]

    products = []
    shapes = [(1, 1, 1), (1, 2, 33), (7, 3, 19), (6, 17, 16), (3, 66, 37), (2, 299, 3), (2, 300, 5)]
    for fill in (numbers, lambda count: [MODULUS - 1] * count, lambda count: [0] * count):
        for rows, terms, columns in shapes if fill is numbers else shapes[1::4]:
            left, right = fill(rows * terms), fill(terms * columns)
            sums = (
                sum(left[row * terms + i] * right[i * columns + column] for i in range(terms))
                for row in range(rows)
                for column in range(columns)
            )
            product = packed([total % MODULUS for total in sums])
            sides = {"left": packed(left), "right": packed(right), "product": product}
            products.append({"rows": rows, "terms": terms, "columns": columns, **sides})
    draws = []
    for count in (1, 9, 40):
        key = drawn(f"uniform {count}", 16)
        stream = streamed(key, 4 * count + 400)
        words = [int.from_bytes(stream[i : i + 4], "little") for i in range(0, len(stream), 4)]
        kept = [word for word in words if word < MODULUS][:count]
        draws.append({"key": key.hex(), "count": count, "words": packed(kept)})
    places = (
        ([1], [7]),
        ([1, 2, 3], [4, 5, 2]),
        ([1, 2, 3, 4, 70, 5], list(range(71, 80))),
        ([0, MODULUS - 1, 17], [MODULUS - 2, 1]),
    )
    bases = [
        {"nodes": nodes, "points": points, "basis": packed(lagrange_basis(nodes, points))}
        for nodes, points in places
    ]
    return {"cases": products, "bases": bases, "draws": draws}


def lagrange_basis(nodes: list[int], points: list[int]) -> list[int]:
    """For each point and node prod (point - other) / (node - other) over the other nodes."""
    basis = []
    for point in points:
        for node in nodes:
            value = 1
            for other in nodes:
                if other != node:
                    value = value * (point - other) * pow(node - other, -1, MODULUS) % MODULUS
            basis.append(value)
    return basis
