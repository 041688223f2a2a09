#include "cuda/image.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <vector>

#include "base/failure.hpp"
#include "base/mapped_file.hpp"
#include "cuda/memory.hpp"

namespace mkrt::cuda {

namespace {

// "sm_90a" -> 90 and 'a'; false for anything else.
bool parse_target(std::string_view target, std::string_view prefix, int* out_number, char* out_suffix) noexcept {
  if (!target.starts_with(prefix)) return false;
  target.remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(target.data(), target.data() + target.size(), *out_number);
  if (error != std::errc{}) return false;
  const std::string_view rest(end, static_cast<size_t>(target.data() + target.size() - end));
  *out_suffix = rest.empty() ? '\0' : rest[0];
  return rest.size() <= 1;
}

// More bytes than any block has, and than images count. What is more is this: files may ask for so many rows that
// products wrap around.
constexpr uint64_t too_much = UINT32_MAX;

// Bytes that a record's staged operands take in an activation buffer: at most, or at least, in the smallest pieces.
uint64_t staged_bytes(const package::Record& record, const package::Program& program, const mkrt_image_info& info,
                      bool least) {
  uint64_t bytes = 0;
  uint64_t last_row = 0;
  for (size_t k = 0; k < record.operands.size(); ++k) {
    if ((info.staged_operands[record.opcode] >> k & 1) == 0 || !record.operands[k]) continue;
    const package::Operand& operand = *record.operands[k];
    uint64_t row = operand.size * package::dtype_size(program.tensors[operand.tensor].dtype);
    row = (row + 127) / 128 * 128;
    const bool whole = info.whole[record.opcode] != 0;
    if (least && !whole) row = std::min<uint64_t>(row, info.minimum_row_bytes);
    last_row = std::min(row + (whole ? 0 : info.row_padding), too_much);
    bytes = std::min(bytes + operand.rows * last_row, too_much);
  }
  const uint8_t more = least ? info.more_rows[record.opcode] : info.useful_rows[record.opcode];
  return bytes + more * last_row;
}

struct Demand {
  uint64_t bytes = 0;
  const package::Record* record = nullptr;
};
Demand largest_demand(const package::Program& program, const mkrt_image_info& info, bool least) {
  Demand demand;
  for (const package::Entry& entry : program.entries) {
    for (const package::Record& record : entry.records) {
      const uint64_t bytes = staged_bytes(record, program, info, least);
      if (bytes > demand.bytes || demand.record == nullptr) demand = {bytes, &record};
    }
  }
  return demand;
}

constexpr uint64_t buffer_alignment = 128;

}  // namespace

int target_score(std::string_view target, int major, int minor) noexcept {
  // Apart by more than any capability, so that among images of one form the nearest wins.
  constexpr int own = 30'000, family = 20'000, plain = 10'000, translated = 1;
  const int device = major * 10 + minor;
  int number = 0;
  char suffix = '\0';
  if (parse_target(target, "sm_", &number, &suffix)) {
    if (suffix == 'a') return number == device ? own : 0;
    const bool same_major = number / 10 == major && number <= device;
    if (suffix == 'f') return same_major ? family + number : 0;
    return suffix == '\0' && same_major ? plain + number : 0;
  }
  if (parse_target(target, "compute_", &number, &suffix) && suffix == '\0' && number <= device)
    return translated + number;
  return 0;
}

const package::Image& choose_image(const package::Program& program, int major, int minor) {
  const package::Image* best = nullptr;
  int best_score = 0;
  std::string targets;
  for (const package::Image& image : program.images) {
    const int score = target_score(image.target, major, minor);
    if (score > best_score) {
      best_score = score;
      best = &image;
    }
    targets += targets.empty() ? "" : ", ";
    targets += image.target;
  }
  if (best != nullptr) return *best;
  throw base::Failure(MKRT_ERROR_UNSUPPORTED,
                      base::text("the package has no image for a device of compute capability ", major, ".", minor,
                                 "; it has ", targets.empty() ? "none at all" : targets));
}

SharedMemoryPlan plan_shared_memory(const package::Program& program, const mkrt_image_info& info,
                                    uint32_t device_bytes) {
  const uint32_t available = std::min(device_bytes, info.maximum_shared_bytes);
  const auto round = [](uint64_t bytes) {
    return (bytes + buffer_alignment - 1) / buffer_alignment * buffer_alignment;
  };
  const Demand least = largest_demand(program, info, true);
  const uint64_t needed =
      info.fixed_shared_bytes + 2 * round(least.bytes) + uint64_t{info.minimum_pages} * info.page_bytes;
  if (needed > available) {
    throw base::Failure(MKRT_ERROR_UNSUPPORTED,
                        base::text("record ", base::quoted(least.record->label), " needs ", needed,
                                   " bytes of shared memory in a block, and the ",
                                   available == device_bytes ? "device has " : "image takes at most ", available));
  }
  const Demand most = largest_demand(program, info, false);
  if (most.bytes >= too_much) {
    throw base::Failure(MKRT_ERROR_UNSUPPORTED, base::text("record ", base::quoted(most.record->label), " has rows of ",
                                                           too_much, " bytes or more for a block's shared memory"));
  }
  // Whole rows where they leave the ring its pages, pieces of rows otherwise.
  const uint64_t wanted = round(most.bytes);
  const uint64_t reserved = info.fixed_shared_bytes + uint64_t{info.preferred_pages} * info.page_bytes;
  const uint64_t share = available > reserved ? (available - reserved) / 2 / buffer_alignment * buffer_alignment : 0;
  SharedMemoryPlan plan;
  plan.activation_bytes = static_cast<uint32_t>(std::max(round(least.bytes), std::min(wanted, share)));
  const uint64_t left = available - info.fixed_shared_bytes - 2 * uint64_t{plan.activation_bytes};
  plan.page_count = static_cast<uint32_t>(std::min<uint64_t>(left / info.page_bytes, info.maximum_pages));
  plan.total_bytes = info.fixed_shared_bytes + 2 * plan.activation_bytes + plan.page_count * info.page_bytes;
  return plan;
}

LoadedImage::LoadedImage(std::shared_ptr<const DeviceContext> context, const package::Program& program)
    : context_(std::move(context)) {
  const Driver& driver = context_->driver();
  int major = 0;
  int minor = 0;
  driver.check(driver.device_attribute(&major, attribute_compute_major, context_->device()), "ask for the capability");
  driver.check(driver.device_attribute(&minor, attribute_compute_minor, context_->device()), "ask for the capability");
  const package::Image& image = choose_image(program, major, minor);
  name_ = image.file;
  const base::MappedFile file(program.path + "/" + image.file);
  // PTX is text that the driver reads up to a zero byte, which a mapped file does not promise.
  std::vector<char> bytes(file.bytes().size() + 1);
  std::memcpy(bytes.data(), file.bytes().data(), file.bytes().size());
  driver.check(driver.module_load(&module_, bytes.data()), base::text("load the image ", base::quoted(image.file)));
  try {
    check(program);
  } catch (...) {
    driver.module_unload(module_);
    throw;
  }
}

LoadedImage::~LoadedImage() {
  const ContextScope scope(*context_);
  context_->driver().module_unload(module_);
}

void LoadedImage::check(const package::Program& program) {
  const Driver& driver = context_->driver();
  DevicePointer address = 0;
  size_t size = 0;
  const Result found = driver.module_global(&address, &size, module_, "mkrt_image");
  if (found == result_not_found) refuse("has no mkrt_image");
  driver.check(found, "look for mkrt_image");
  if (size != sizeof(mkrt_image_info)) refuse("describes itself in a form that this library does not know");
  // A stream of its own: the context's default stream would wait for the application's.
  const StreamHandle stream(context_, nullptr);
  driver.check(driver.copy_to_host(&info_, address, sizeof(info_), stream.get()), "read the image's description");
  driver.check(driver.stream_synchronize(stream.get()), "read the image's description");
  if (info_.launch_version != MKRT_LAUNCH_VERSION || info_.launch_size != sizeof(mkrt_launch) ||
      info_.record_size != sizeof(mkrt_record)) {
    refuse(base::text("was built for launch interface ", info_.launch_version, ", this library has ",
                      MKRT_LAUNCH_VERSION));
  }
  if (info_.isa_fingerprint != program.isa.fingerprint) {
    refuse(base::text("was built for an instruction set with fingerprint ", std::hex, info_.isa_fingerprint,
                      ", the program's ", program.isa.name, " has ", program.isa.fingerprint));
  }
  if (program.isa.opcodes.size() > MKRT_IMAGE_OPCODES) refuse("cannot have that many opcodes");
  check_ranks(program);
  if (info_.block_size == 0) refuse("wants blocks of 0 threads");
  for (size_t opcode = 0; opcode < MKRT_IMAGE_OPCODES; ++opcode) {
    if (info_.useful_rows[opcode] < info_.more_rows[opcode]) refuse("makes use of fewer rows than it needs");
  }
  if (info_.page_bytes == 0 || info_.minimum_pages == 0 || info_.preferred_pages < info_.minimum_pages ||
      info_.maximum_pages < info_.preferred_pages) {
    refuse("asks for an impossible ring of pages");
  }
  find_kernels();
  int threads = 0;
  driver.check(driver.function_attribute(&threads, function_max_threads_per_block, kernel_), "ask for the block size");
  if (info_.block_size > static_cast<uint32_t>(threads)) {
    refuse(base::text("wants blocks of ", info_.block_size, " threads, and the device allows ", threads));
  }
  int available = 0;
  driver.check(driver.device_attribute(&available, attribute_shared_memory_per_block_optin, context_->device()),
               "ask for the shared memory of a block");
  shared_memory_ = plan_shared_memory(program, info_, static_cast<uint32_t>(available));
  for (const Function kernel : {kernel_, traced_kernel_}) {
    if (kernel == nullptr) continue;
    driver.check(driver.function_set_attribute(kernel, function_max_dynamic_shared_bytes,
                                               static_cast<int>(shared_memory_.total_bytes)),
                 base::text("get ", shared_memory_.total_bytes, " bytes of shared memory for a block"));
  }
}

// The check at load has looked at the ranks that operands name; a kernel that took another rank's would undo that.
void LoadedImage::check_ranks(const package::Program& program) const {
  for (const package::Entry& entry : program.entries) {
    for (const package::Record& record : entry.records) {
      for (size_t k = 0; k < record.operands.size(); ++k) {
        if (!record.operands[k] || record.operands[k]->rank.mode == MKRT_RANK_SELF) continue;
        if ((info_.ranked_operands[record.opcode] >> k & 1) != 0) continue;
        const package::OpcodeDefinition& opcode = program.isa.opcodes[record.opcode];
        refuse(base::text("takes operand ", base::quoted(opcode.operands[k].name), " of ", base::quoted(opcode.name),
                          " from the own rank only, and record ", base::quoted(record.label), " names another"));
      }
    }
  }
}

void LoadedImage::find_kernels() {
  const Driver& driver = context_->driver();
  const Result found = driver.module_function(&kernel_, module_, "mkrt_run");
  if (found == result_not_found) refuse("has no kernel mkrt_run");
  driver.check(found, "look for mkrt_run");
  const Result traced_found = driver.module_function(&traced_kernel_, module_, "mkrt_run_traced");
  if (traced_found == result_not_found) {
    traced_kernel_ = nullptr;  // whatever the driver left there
  } else {
    driver.check(traced_found, "look for mkrt_run_traced");
  }
}

void LoadedImage::refuse(const std::string& why) const {
  throw base::Failure(MKRT_ERROR_UNSUPPORTED, base::text("image ", base::quoted(name_), " ", why));
}

}  // namespace mkrt::cuda
