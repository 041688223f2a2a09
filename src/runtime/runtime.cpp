#include "runtime/runtime.hpp"

#include <utility>

#include "base/failure.hpp"
#include "host/host.hpp"
#include "runtime/hook_allocator.hpp"

namespace mkrt::runtime {

Runtime::Runtime(std::shared_ptr<const base::Hooks> hooks, std::vector<const mkrt_host_isa*> host_isas,
                 CudaDevices::OpenDriver open_driver)
    : hooks_(std::move(hooks)), host_isas_(std::move(host_isas)), cuda_(hooks_, open_driver) {}

mkrt_device_info Runtime::device_info(uint32_t index) {
  const std::vector<mkrt_device_info>& cuda = cuda_.found().devices;
  if (index < cuda.size()) return cuda[index];
  if (index > cuda.size()) {
    throw base::Failure(MKRT_ERROR_ARGUMENT,
                        base::text("device ", index, " does not exist; there are ", device_count()));
  }
  mkrt_device_info info{};
  info.struct_size = sizeof(info);
  host::describe_host(0, &info);
  return info;
}

std::shared_ptr<Runtime> create_runtime(const mkrt_runtime_desc* desc, std::vector<const mkrt_host_isa*> host_isas,
                                        CudaDevices::OpenDriver open_driver) {
  const base::Hooks hooks(desc);
  return make_object<Runtime>(hooks, make_object<base::Hooks>(hooks, hooks), std::move(host_isas), open_driver);
}

}  // namespace mkrt::runtime
