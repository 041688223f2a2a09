#include "host/mesh.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/failure.hpp"
#include "host/executable.hpp"
#include "host/host.hpp"
#include "host/isa.hpp"

namespace mkrt::host {

namespace {

std::vector<uint32_t> workers_of(const device::ProcessGroup& group, std::span<const mkrt_rank_desc> ranks) {
  if (ranks.empty() || ranks.size() > MKRT_MAX_RANKS) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("a mesh has 1 to ", MKRT_MAX_RANKS, " ranks"));
  }
  const uint32_t share = std::max(1u, std::thread::hardware_concurrency() / group.rank_count());
  std::vector<uint32_t> workers;
  for (const mkrt_rank_desc& rank : ranks) {
    if (rank.worker_count > Door::most_workers) {
      throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("a host rank has at most ", Door::most_workers, " workers; ",
                                                          rank.worker_count, " were asked for"))
          .at_rank(static_cast<int32_t>(workers.size()));
    }
    workers.push_back(rank.worker_count != 0 ? rank.worker_count : std::min(share, Door::most_workers));
  }
  return workers;
}

}  // namespace

Mesh::Mesh(std::shared_ptr<const base::Hooks> hooks, std::shared_ptr<device::ProcessGroup> process_group,
           std::span<const mkrt_rank_desc> ranks, std::vector<const mkrt_host_isa*> isas)
    : device::Mesh(std::move(process_group)),
      hooks_(std::move(hooks)),
      isas_(std::move(isas)),
      scheduler_(group(), workers_of(group(), ranks)) {}

void Mesh::describe(uint32_t rank, mkrt_device_info* out_info) const noexcept {
  describe_host(scheduler_.worker_count(rank), out_info);
}

std::unique_ptr<device::Executable> Mesh::load(std::shared_ptr<const package::Program> program,
                                               const device::LoadOptions& options) {
  if (program->rank_count != rank_count()) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("the program is written for ", program->rank_count,
                                                        " ranks, the mesh has ", rank_count()));
  }
  const mkrt_host_isa& isa = find_isa(isas_, program->isa);
  return std::make_unique<Executable>(hooks_, group(), scheduler_, std::move(program), isa, options.memory_budget);
}

std::unique_ptr<device::Mesh> create_mesh(std::shared_ptr<const base::Hooks> hooks,
                                          std::span<const mkrt_rank_desc> ranks,
                                          std::span<const mkrt_host_isa* const> isas,
                                          std::shared_ptr<device::ProcessGroup> group) {
  // The application's come first, so that it may replace what is built in.
  std::vector<const mkrt_host_isa*> all(isas.begin(), isas.end());
  all.insert(all.end(), builtin_isas().begin(), builtin_isas().end());
  return std::make_unique<Mesh>(std::move(hooks), std::move(group), ranks, std::move(all));
}

}  // namespace mkrt::host
