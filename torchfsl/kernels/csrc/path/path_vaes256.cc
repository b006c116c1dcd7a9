#include "gf128_clmul.h"
#include "path_body.h"
#include "vec_vaes256.h"

namespace fsl {

constinit const Path kVaes256Path = make_path<Vaes256, CarrylessProducts>("vaes256");

}  // namespace fsl
