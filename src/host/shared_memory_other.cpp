// Systems on which host ranks stay inside one process.
#include "base/failure.hpp"
#include "host/shared_memory.hpp"

namespace mkrt::host {

base::Descriptor create_shared_memory(uint64_t, const char*) {
  throw base::Failure(MKRT_ERROR_UNSUPPORTED, "host ranks in several processes need Linux");
}
SharedRange::SharedRange(uint64_t bytes) : bytes_(bytes) {}
SharedRange::~SharedRange() = default;
void SharedRange::map(const base::Descriptor&, uint64_t, uint64_t) {}

}  // namespace mkrt::host
