// Checks what a schedule must keep (src/package/README.md): what passes can neither deadlock nor race nor leave its
// tensors, on any number of workers, in any queue mode. README.md has the argument.
#pragma once

#include "package/program.hpp"

namespace mkrt::verify {

// Fills in the step_total of every wait. Throws base::Failure (MKRT_ERROR_SCHEDULE) that names entry, record, tile and
// rank and says what is wrong; the program must not be used then. README.md says how long it may take.
void check(package::Program& program);

}  // namespace mkrt::verify
