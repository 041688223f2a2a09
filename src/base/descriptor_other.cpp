// Systems on which meshes stay inside one process: nothing gives a descriptor away there.
#include "base/descriptor.hpp"

namespace mkrt::base {

Descriptor::~Descriptor() = default;
uint32_t process_id() noexcept { return 0; }
Descriptor watch_own_process() noexcept { return Descriptor(); }
bool process_ended(const Descriptor&) noexcept { return false; }

}  // namespace mkrt::base
