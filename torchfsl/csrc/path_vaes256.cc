#include "path_body.h"
#include "vec_vaes256.h"

namespace fsl {

constinit const Path kVaes256Path = make_path<Vaes256>("vaes256");

}  // namespace fsl
