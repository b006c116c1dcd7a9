#include "path_body.h"
#include "vec_portable.h"

namespace fsl {

constinit const Path kPortablePath = make_path<Portable>("portable");

}  // namespace fsl
