"""Rates of encryption under `--aggregation sefl`: values per CPU second, bytes per value.

    python -m scripts.bench.homomorphic [--bits 33] [--ciphertexts 200] [--json FILE]
    python -m scripts.bench.homomorphic --paillier-python VENV/bin/python   # phe and gmpy2 in there

Time is processor time, so that other programs on the machine count little. The best of some passes
counts. Encoding and reading ciphertexts have separate figures. Paillier is the baseline: numbers of
`--bits` packed side by side, with a key of 3,072 bits. It runs in a separate environment, because
`phe` has another licence and is not a dependency of torchfsl.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.bench import measure
from scripts.program import Found, Options, option
from torchfsl.crypto.bfv_parameters import Scheme, least_modulus
from torchfsl.crypto.homomorphic import Ciphertexts, KeyPair, PublicKey

PASSES = 5

PAILLIER = """
import json, secrets, sys, time
import phe
assert phe.util.HAVE_GMP, "phe without gmpy2"
bits, count = int(sys.argv[1]), int(sys.argv[2])
public, private = phe.generate_paillier_keypair(n_length=3072)
packed = (3072 - 8) // bits
texts = [secrets.randbits(packed * bits) for _ in range(count)]
def timed(work):
    start = time.process_time()
    found = work()
    return found, count * packed / (time.process_time() - start)
sealed, encrypt = timed(lambda: [public.raw_encrypt(text) for text in texts])
total, add = timed(lambda: [a * b % public.nsquare for a, b in zip(sealed, sealed)])
opened, decrypt = timed(lambda: [private.raw_decrypt(one) for one in sealed])
assert opened == texts
print(json.dumps({"encrypt": encrypt, "add": add, "decrypt": decrypt,
                  "bytes_per_value": 2 * 3072 / 8 / packed}))
"""


def rate(num_values: int, work: Callable[[], object], passes: int = PASSES) -> float:
    """Values a CPU second, of the best pass."""
    return num_values / min(measure.cpu_seconds(work, passes))


def rates(degree: int, bits: int, count: int) -> dict[str, float]:
    """Values a CPU second of every step, and bytes a value.

    Args:
        degree: slots a ciphertext.
        bits: of the modulus.
        count: ciphertexts in a pass.
    """
    scheme = Scheme(degree, least_modulus(degree, 3 << (bits - 3)), 100)
    keys = KeyPair(scheme)
    key = PublicKey(scheme, keys.public)
    values = np.random.default_rng(0).integers(0, scheme.modulus, count * degree, dtype=np.uint64)
    sealed = key.encrypt(values)
    total = Ciphertexts.decode(scheme, sealed.encode(), count)
    data, size = sealed.encode(), len(values)
    found = {
        "encode_and_encrypt": rate(size, lambda: key.encrypt(values)),
        "save": rate(size, sealed.encode),
        "load": rate(size, lambda: Ciphertexts.decode(scheme, data, count)),
        "add": rate(size, lambda: total.add(sealed)),
        "check_noise": rate(size, lambda: keys.noise_budget(sealed)),
        "check_decrypt_and_decode": rate(size, lambda: keys.decrypt(sealed)),
        "bytes_per_value": len(data) / size,
    }
    # What is left without the check of the noise, which other uses of BFV do not make.
    checked, check = found["check_decrypt_and_decode"], found["check_noise"]
    found["decrypt_and_decode"] = 1 / (1 / checked - 1 / check)
    if not np.array_equal(keys.decrypt(sealed), values):
        raise RuntimeError("decryption differs")
    return found


def paillier(python: str, bits: int, count: int) -> dict[str, Any]:
    """The same of Paillier, run by another Python; the reason where that cannot be."""
    done = subprocess.run(
        [python, "-c", PAILLIER, str(bits), str(count)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"skipped": done.stderr.strip().splitlines()[-1]}
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@measure.benchmark(
    option("--bits", 33, "of a slot; default 33"),
    option("--ciphertexts", 200, "in a pass"),
    option("--paillier-python", "", "Python that has phe and gmpy2"),
)
def main(options: Options, figures: Found) -> None:
    """Measure and print."""
    rows: dict[str, dict[str, Any]] = {
        f"bfv {degree}": rates(degree, options.bits, max(1, options.ciphertexts * 2048 // degree))
        for degree in (2048, 4096)
    }
    rows["paillier 3072"] = {"skipped": "give --paillier-python"}
    if options.paillier_python:
        rows["paillier 3072"] = paillier(options.paillier_python, options.bits, 40)
    for name, row in rows.items():
        for what, value in row.items():
            measure.print_figure(f"{name} {what}", value)
    figures["rates"] = rows
