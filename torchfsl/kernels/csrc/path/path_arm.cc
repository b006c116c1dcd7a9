#include "gf128_clmul.h"
#include "path_body.h"
#include "vec_neon.h"

namespace fsl {

constinit const Path kArmPath = make_path<Neon, CarrylessProducts>("arm");

}  // namespace fsl
