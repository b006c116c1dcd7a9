// Choice of the CPU path at run time.
#pragma once

#include "path.h"

namespace fsl {

// The fastest path of this machine, or the one that TORCHFSL_CPU_PATH names (portable; aesni,
// vaes256 or vaes512 on x86; arm). Fixed at the first call. Throws std::invalid_argument if the
// named path does not exist or this CPU lacks it.
const Path& active_path();

// Whether this CPU has the carry-less multiplication of the active path, which is a feature of its
// own: PCLMULQDQ, or VPCLMULQDQ for the wide paths, or PMULL.
bool has_carryless_multiply();

// Whether it has instructions for SHA-256; false on the portable path.
bool has_sha256();

}  // namespace fsl
