"""The portable backend: NumPy, with AES from `cryptography`. The readable specification.

Same functions and same bytes as the native extension; `trees` has the point function, what servers
do with it, retrieval by one bit a row and one path through a tree, `checks` the defences, `field`
matrix products modulo a prime and modulo powers of two, `proofs` what proofs take the time with.
"""

from torchfsl.kernels.portable.checks import authenticate as authenticate
from torchfsl.kernels.portable.checks import authenticate_batch as authenticate_batch
from torchfsl.kernels.portable.checks import check_gen as check_gen
from torchfsl.kernels.portable.checks import inner_product as inner_product
from torchfsl.kernels.portable.checks import leaf_hash as leaf_hash
from torchfsl.kernels.portable.checks import row_digests as row_digests
from torchfsl.kernels.portable.checks import tags as tags
from torchfsl.kernels.portable.checks import verify as verify
from torchfsl.kernels.portable.field import field_multiply as field_multiply
from torchfsl.kernels.portable.field import ring_multiply as ring_multiply
from torchfsl.kernels.portable.proofs import accumulate_lifted as accumulate_lifted
from torchfsl.kernels.portable.proofs import carry_sums as carry_sums
from torchfsl.kernels.portable.proofs import field_transform as field_transform
from torchfsl.kernels.portable.proofs import leaf_sums as leaf_sums
from torchfsl.kernels.portable.proofs import query_proof as query_proof
from torchfsl.kernels.portable.proofs import square_sums as square_sums
from torchfsl.kernels.portable.trees import accumulate as accumulate
from torchfsl.kernels.portable.trees import accumulate_batch as accumulate_batch
from torchfsl.kernels.portable.trees import answer as answer
from torchfsl.kernels.portable.trees import answer_bits as answer_bits
from torchfsl.kernels.portable.trees import convert as convert
from torchfsl.kernels.portable.trees import gather as gather
from torchfsl.kernels.portable.trees import hint_gen as hint_gen
from torchfsl.kernels.portable.trees import match as match
from torchfsl.kernels.portable.trees import stable_order as stable_order
from torchfsl.kernels.portable.trees import tree_eval as tree_eval
from torchfsl.kernels.portable.trees import tree_gen as tree_gen
from torchfsl.kernels.portable.trees import tree_path as tree_path
