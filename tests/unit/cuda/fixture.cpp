#include "fixture.hpp"

#include <algorithm>
#include <fstream>
#include <random>

namespace mkrt::cuda::test {

using host::test::op_count;
using host::test::op_fault;
using host::test::op_hold;
using host::test::op_mix;
using host::test::op_nothing;
using host::test::request;
using host::test::ScheduleBuilder;

namespace {

constexpr char image_name[] = "test.sm_90.image";

// Each weight is hashed into a layer, these into what the rank sends to all, and all that came into the state.
void add_step(ScheduleBuilder& builder, uint32_t ranks, uint32_t state, uint64_t weight_elements,
              std::array<uint32_t, 2> weights) {
  const mkrt_rank_selector all = {MKRT_RANK_ALL, 0xff, 0};
  const std::array<uint32_t, 2> layers = {builder.tensor("layer0", width), builder.tensor("layer1", width)};
  const uint32_t sent = builder.tensor("sent", uint64_t{width} * ranks);
  builder.entry("step");
  const uint32_t stated = builder.counter("state");
  const uint32_t mixed = builder.counter("mixed", 2);
  const uint64_t share = weight_elements / width;
  for (uint32_t i = 0; i < 2; ++i) {
    package::Record& record = builder.record("weight" + std::to_string(i), op_mix, {width, 1, 1, 1});
    record.operands = {builder.slice(weights[i], share, share), builder.slice(layers[i], 1, 1)};
    record.parameters = {i};
    record.waits = {builder.wait(stated, 0, -1)};
    record.signals = {builder.signal(mixed + i)};
  }
  package::Record& join = builder.record("join", op_mix, {width, 1, 1, 1});
  join.operands = {builder.slice(layers[0], width), builder.slice(sent, 1, 1)};
  join.operands[1]->rank_stride = width;
  join.operands[1]->rank = all;
  join.parameters = {7};
  const uint32_t joined = builder.counter("joined");
  const uint32_t read = builder.counter("read");
  join.waits = {builder.wait(mixed), builder.wait(mixed + 1), builder.wait(read, 0, -1)};
  join.signals = {builder.signal(joined, all)};
  package::Record& fold = builder.record("fold", op_mix, {width, 1, 1, 1});
  fold.operands = {builder.slice(sent, uint64_t{width} * ranks), builder.slice(state, 1, 1)};
  fold.parameters = {8};
  fold.waits = {builder.wait(joined)};
  fold.signals = {builder.signal(stated), builder.signal(read, all)};
}

void add_others(ScheduleBuilder& builder, uint32_t total) {
  builder.entry("count");
  const uint32_t counted = builder.counter("counted");
  package::Record& count = builder.record("count", op_count);
  count.operands = {builder.slice(total, 1)};
  count.waits = {builder.wait(counted, 0, -1)};
  count.signals = {builder.signal(counted)};
  builder.entry("hold");
  builder.record("hold", op_hold);
  builder.entry("stuck");
  const uint32_t blocks = builder.counter("blocks", 4);
  builder.record("produce", op_nothing, {4, 1, 1, 1}).signals = {builder.signal(blocks)};
  builder.record("consume", op_nothing).waits = {builder.wait(blocks, 5)};
  builder.entry("fault");
  builder.record("fine", op_nothing, {3, 1, 1, 1});
  builder.record("fine too", op_nothing);
  builder.record("wrong", op_fault).parameters = {1};
  builder.entry("apart");
  const uint32_t came = builder.counter("came");
  builder.record("send", op_nothing).signals = {builder.signal(came, {MKRT_RANK_FIXED, 0xff, 0})};
  builder.record("await", op_nothing).waits = {builder.wait(came, 1)};
}

}  // namespace

Work::Work(uint64_t weight_bytes, uint32_t ranks) {
  const uint64_t elements = weight_bytes / sizeof(uint32_t);
  std::mt19937 random(std::random_device{}());
  weights.resize(2 * elements * ranks);
  std::generate(weights.begin(), weights.end(), std::ref(random));
  ScheduleBuilder builder(ranks);
  state = builder.tensor("state", width, MKRT_TENSOR_STATE);
  total = builder.tensor("total", 1, MKRT_TENSOR_STATE);
  const std::array<uint32_t, 2> weight = {builder.tensor("weight0", elements, MKRT_TENSOR_WEIGHT),
                                          builder.tensor("weight1", elements, MKRT_TENSOR_WEIGHT)};
  add_step(builder, ranks, state, elements, weight);
  add_others(builder, total);
  program = std::make_shared<package::Program>(*builder.finish());
  for (size_t i = 0; i < weight.size(); ++i) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const std::span<const uint32_t> own(weights.data() + (rank * weight.size() + i) * elements, elements);
      program->tensors[weight[i]].sources.push_back({"U32", {elements}, std::as_bytes(own)});
    }
  }
  program->path = folder.path();
  program->images = {{"sm_90", image_name}};
  write_image(FakeImage(program->isa.fingerprint));
}

void Work::write_image(const FakeImage& image) const {
  std::ofstream(folder.path(image_name), std::ios::binary) << image.bytes();
}

std::string Work::move_weights_to_file() {
  const size_t bytes = weights.size() / 2 * sizeof(uint32_t);
  const auto entry = [&](int number) {
    return base::text("\"weight", number, "\":{\"dtype\":\"U32\",\"shape\":[", weights.size() / 2,
                      "],\"data_offsets\":[", number * bytes, ",", (number + 1) * bytes, "]}");
  };
  const std::string header = base::text("{", entry(0), ",", entry(1), "}");
  std::string path = folder.path("weights.safetensors");
  const uint64_t length = header.size();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(&length), sizeof(length))
      .write(header.data(), static_cast<std::streamsize>(header.size()))
      .write(reinterpret_cast<const char*>(weights.data()), static_cast<std::streamsize>(2 * bytes));
  const auto file = std::make_shared<package::SafetensorsFile>(path);
  for (package::Tensor& tensor : program->tensors) {
    if (tensor.kind == MKRT_TENSOR_WEIGHT) tensor.sources = {*file->find(tensor.name)};
  }
  program->weight_files = {file};
  return path;
}

std::vector<uint32_t> host_result(const Work& work, const std::vector<uint32_t>& begin, uint32_t steps) {
  const auto mesh = host::test::make_mesh(work.program->rank_count, 2);
  const auto executable = mesh->load(work.program, {});
  const auto session = executable->create_session();
  write_state(*session, work, begin);
  run(*session, request(entry_step, steps));
  return read_state(*session, work);
}

std::vector<uint32_t> random_state(uint32_t ranks) {
  std::mt19937 random(std::random_device{}());
  std::vector<uint32_t> state(size_t{width} * ranks);
  std::generate(state.begin(), state.end(), std::ref(random));
  return state;
}

mkrt_rank_desc rank_desc(uint32_t ordinal) {
  mkrt_rank_desc rank{};
  rank.struct_size = sizeof(rank);
  rank.kind = MKRT_DEVICE_CUDA;
  rank.ordinal = ordinal;
  return rank;
}

std::vector<mkrt_rank_desc> rank_descs(std::initializer_list<uint32_t> ordinals) {
  std::vector<mkrt_rank_desc> ranks;
  for (const uint32_t ordinal : ordinals) ranks.push_back(rank_desc(ordinal));
  return ranks;
}

std::unique_ptr<device::Mesh> make_mesh(const DriverDouble& gpu, RankDescs ranks,
                                        const mkrt_device_memory_extension* device_memory) {
  return create_mesh(std::make_shared<base::Hooks>(nullptr), gpu.driver(), ranks, device_memory,
                     std::make_shared<device::ProcessGroup>(static_cast<uint32_t>(ranks.size())));
}

OnGpu::OnGpu(const DriverDouble& gpu, const Work& work, RankDescs ranks, const device::LoadOptions& options,
             const mkrt_device_memory_extension* device_memory)
    : mesh(make_mesh(gpu, ranks, device_memory)),
      executable(mesh->load(work.program, options)),
      session(executable->create_session()) {}

constexpr size_t state_bytes = width * sizeof(uint32_t);

void write_state(device::Session& session, const Work& work, const std::vector<uint32_t>& state) {
  REQUIRE(state.size() == size_t{width} * work.program->rank_count);
  for (uint32_t rank = 0; rank < work.program->rank_count; ++rank) {
    REQUIRE(session.write(rank, work.state, 0, state.data() + size_t{rank} * width, state_bytes, nullptr) == MKRT_OK);
  }
}

std::vector<uint32_t> read_state(device::Session& session, const Work& work) {
  std::vector<uint32_t> state(size_t{width} * work.program->rank_count);
  for (uint32_t rank = 0; rank < work.program->rank_count; ++rank) {
    REQUIRE(session.read(rank, work.state, 0, state_bytes, state.data() + size_t{rank} * width, nullptr) == MKRT_OK);
  }
  return state;
}

uint32_t read_total(device::Session& session, const Work& work, uint32_t rank) {
  uint32_t total = 0;
  REQUIRE(session.read(rank, work.total, 0, sizeof(total), &total, nullptr) == MKRT_OK);
  return total;
}

void run(device::Session& session, const device::ExecuteRequest& request) {
  mkrt_error error = MKRT_ERROR_INIT;
  uint64_t value = 0;
  REQUIRE_MESSAGE(session.execute(request, &value, &error) == MKRT_OK, error.message);
  REQUIRE_MESSAGE(session.wait(value, UINT64_MAX, &error) == MKRT_OK, error.message);
}

uint64_t enqueue(device::Session& session, const device::ExecuteRequest& request) {
  mkrt_error error = MKRT_ERROR_INIT;
  uint64_t value = 0;
  REQUIRE_MESSAGE(session.execute(request, &value, &error) == MKRT_OK, error.message);
  return value;
}

}  // namespace mkrt::cuda::test
