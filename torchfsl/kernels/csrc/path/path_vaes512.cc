#include "gf128_clmul.h"
#include "path_body.h"
#include "vec_vaes512.h"

namespace fsl {

constinit const Path kVaes512Path = make_path<Vaes512, CarrylessProducts>("vaes512");

}  // namespace fsl
