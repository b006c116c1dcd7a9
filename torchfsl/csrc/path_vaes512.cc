#include "path_body.h"
#include "vec_vaes512.h"

namespace fsl {

constinit const Path kVaes512Path = make_path<Vaes512>("vaes512");

}  // namespace fsl
