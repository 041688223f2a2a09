#include "runtime/program.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/failure.hpp"
#include "memory/layout.hpp"
#include "package/reader.hpp"
#include "runtime/hook_allocator.hpp"
#include "verify/verify.hpp"

namespace mkrt::runtime {
namespace {

__extension__ using Wide = unsigned __int128;  // products of sizes and tile counts, before they are cut to 64 bits

uint64_t cut(Wide value) noexcept { return value > UINT64_MAX ? UINT64_MAX : static_cast<uint64_t>(value); }

// Sum over i < count of min(size, limit - (start + i * stride)). Every such start is below the limit: verify/ has seen
// to it.
Wide row_elements(uint64_t start, uint64_t stride, uint64_t count, uint64_t size, uint64_t limit) noexcept {
  const uint64_t room = limit - start;
  if (stride == 0) return Wide{count} * std::min(size, room);
  const uint64_t whole = room < size ? 0 : std::min(count, (room - size) / stride + 1);  // rows that are not cut
  const uint64_t cut_rows = count - whole;
  const Wide cut_indices = Wide{whole + count - 1} * cut_rows / 2;  // sum of their i
  return Wide{whole} * size + Wide{cut_rows} * room - cut_indices * stride;
}

// Elements that all tiles of a record declare in one operand. A closed form for the longest dimension and a loop over
// the others, because only an operand with a limit needs the loop at all.
uint64_t declared_elements(const package::Record& record, const package::Operand& operand) noexcept {
  Wide largest_start = 0;
  uint32_t longest = 0;
  for (uint32_t d = 0; d < MKRT_TILE_DIMENSIONS; ++d) {
    largest_start += Wide{record.grid[d] - 1} * operand.strides[d];
    if (record.grid[d] > record.grid[longest]) longest = d;
  }
  if (largest_start + operand.size <= operand.limit) return cut(Wide{record.tile_count} * operand.rows * operand.size);
  Wide sum = 0;
  std::array<uint32_t, MKRT_TILE_DIMENSIONS> index{};
  const uint64_t lines = record.tile_count / record.grid[longest];
  for (uint64_t line = 0; line < lines; ++line) {
    uint64_t start = 0;
    for (uint32_t d = 0; d < MKRT_TILE_DIMENSIONS; ++d) start += index[d] * operand.strides[d];
    sum += row_elements(start, operand.strides[longest], record.grid[longest], operand.size, operand.limit);
    for (uint32_t d = MKRT_TILE_DIMENSIONS; d-- > 0;) {
      if (d == longest) continue;
      if (++index[d] < record.grid[d]) break;
      index[d] = 0;
    }
  }
  return cut(sum * operand.rows);
}

uint64_t weight_bytes_read(const package::Program& program, const package::Record& record) noexcept {
  Wide bytes = 0;
  for (const std::optional<package::Operand>& operand : record.operands) {
    if (!operand) continue;
    const package::Tensor& tensor = program.tensors[operand->tensor];
    if (tensor.kind != MKRT_TENSOR_WEIGHT) continue;
    bytes += Wide{declared_elements(record, *operand)} * package::dtype_size(tensor.dtype);
  }
  return cut(bytes);
}

template <class Item>
const Item& item_at(const std::vector<Item>& items, uint32_t index, const char* what) {
  if (index < items.size()) return items[index];
  throw base::Failure(MKRT_ERROR_ARGUMENT, base::text(what, " ", index, " does not exist; there are ", items.size()));
}

// Names in messages come from the caller: a sentence stays readable with the start of a long one.
base::Failure not_found(const char* what, std::string_view name) {
  constexpr size_t longest = 256;  // bytes of the longest name that a package can have
  return base::Failure(MKRT_ERROR_NOT_FOUND,
                       base::text("the program has no ", what, " named \"", name.substr(0, longest),
                                  name.size() > longest ? "..." : "", "\""));
}

// `failure` with the file that it is about in front of its sentence, which has to fit into an mkrt_error: a path that
// leaves too little room for it is shown by its last part.
base::Failure in_file(const base::Failure& failure, const std::string& path) {
  std::string file = base::shown_path(path);
  const size_t name = file.rfind('/');
  const bool fits = file.size() + 2 + failure.message().size() < sizeof(mkrt_error::message);
  if (!fits && name != std::string::npos) file.replace(0, name, "...");
  return base::Failure(failure.status(), base::text(file, ": ", failure.message()))
      .at_record(failure.record())
      .at_tile(failure.tile())
      .at_rank(failure.rank())
      .with_driver_code(failure.driver_code());
}

// The check knows a program, and not where it came from.
void verify_program(package::Program& program, const std::string& path) {
  try {
    verify::check(program);
  } catch (const base::Failure& failure) {
    throw in_file(failure, package::program_file(path));
  }
}

}  // namespace

Program::Program(std::shared_ptr<Runtime> runtime, std::shared_ptr<const package::Program> package)
    : runtime_(std::move(runtime)), package_(std::move(package)), tensors_by_name_(package_->tensors.size()) {
  const memory::Layout layout = memory::plan_layout(*package_);
  weight_bytes_ = layout.weight_bytes;
  session_bytes_ = layout.session_bytes;
  std::iota(tensors_by_name_.begin(), tensors_by_name_.end(), 0u);
  std::sort(tensors_by_name_.begin(), tensors_by_name_.end(),
            [this](uint32_t a, uint32_t b) { return package_->tensors[a].name < package_->tensors[b].name; });
}

mkrt_program_info Program::info() const noexcept {
  mkrt_program_info info{};
  info.struct_size = sizeof(info);
  info.rank_count = package_->rank_count;
  info.entry_count = static_cast<uint32_t>(package_->entries.size());
  info.tensor_count = static_cast<uint32_t>(package_->tensors.size());
  info.weight_bytes = weight_bytes_;
  info.session_bytes = session_bytes_;
  info.isa_fingerprint = package_->isa.fingerprint;
  info.isa_name = package_->isa.name.c_str();
  return info;
}

mkrt_entry_info Program::entry_info(uint32_t index) const {
  const package::Entry& entry = item_at(package_->entries, index, "entry");
  mkrt_entry_info info{};
  info.struct_size = sizeof(info);
  info.record_count = static_cast<uint32_t>(entry.records.size());
  info.counter_count = entry.counter_count;
  info.tile_count = entry.tile_count;
  info.name = entry.name.c_str();
  return info;
}

mkrt_record_info Program::record_info(uint32_t entry, uint32_t index) const {
  const package::Record& record = item_at(item_at(package_->entries, entry, "entry").records, index, "record");
  mkrt_record_info info{};
  info.struct_size = sizeof(info);
  info.wait_count = static_cast<uint32_t>(record.waits.size());
  info.signal_count = static_cast<uint32_t>(record.signals.size());
  std::copy(record.grid.begin(), record.grid.end(), info.grid);
  info.tile_count = record.tile_count;
  info.bytes_read = weight_bytes_read(*package_, record);
  info.opcode = package_->isa.opcodes[record.opcode].name.c_str();
  info.label = record.label.c_str();
  return info;
}

mkrt_tensor_info Program::tensor_info(uint32_t index) const {
  const package::Tensor& tensor = item_at(package_->tensors, index, "tensor");
  mkrt_tensor_info info{};
  info.struct_size = sizeof(info);
  info.dtype = static_cast<uint32_t>(tensor.dtype);
  info.kind = tensor.kind;
  info.dimension_count = static_cast<uint32_t>(tensor.shape.size());
  std::copy(tensor.shape.begin(), tensor.shape.end(), info.shape);
  info.size_bytes = tensor.size_bytes;
  info.name = tensor.name.c_str();
  return info;
}

uint32_t Program::find_entry(std::string_view name) const {
  const auto found = std::find_if(package_->entries.begin(), package_->entries.end(),
                                  [name](const package::Entry& entry) { return entry.name == name; });
  if (found == package_->entries.end()) throw not_found("entry", name);
  return static_cast<uint32_t>(found - package_->entries.begin());
}

uint32_t Program::find_tensor(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors_by_name_.begin(), tensors_by_name_.end(), name,
      [this](uint32_t index, std::string_view wanted) { return package_->tensors[index].name < wanted; });
  if (found == tensors_by_name_.end() || package_->tensors[*found].name != name) throw not_found("tensor", name);
  return *found;
}

const char* Program::metadata(std::string_view key) const {
  for (const package::Metadata& entry : package_->metadata) {
    if (entry.key == key) return entry.value.c_str();
  }
  throw not_found("metadata", key);
}

std::shared_ptr<Program> load_program(std::shared_ptr<Runtime> runtime, const char* path) {
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::duration<double, std::milli>;
  const Clock::time_point start = Clock::now();
  auto package = std::make_shared<package::Program>(package::read_package(path));
  const Clock::time_point read = Clock::now();
  verify_program(*package, path);
  const Clock::time_point verified = Clock::now();
  runtime->log(MKRT_LOG_INFO, base::text("loaded ", package->path, " for ", package->isa.name, ": ",
                                         package->entries.size(), " entries, ", package->tensors.size(),
                                         " tensors; read in ", Milliseconds(read - start).count(), " ms, verified in ",
                                         Milliseconds(verified - read).count(), " ms"));
  const base::Hooks& hooks = *runtime->hooks();
  return make_object<Program>(hooks, std::move(runtime), std::move(package));
}

}  // namespace mkrt::runtime
