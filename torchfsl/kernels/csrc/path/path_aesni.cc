#include "gf128_clmul.h"
#include "path_body.h"
#include "vec_aesni.h"

namespace fsl {

constinit const Path kAesNiPath = make_path<AesNi, CarrylessProducts>("aesni");

}  // namespace fsl
