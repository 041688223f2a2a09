// Which image a device gets, and which are refused before anything is launched.
#include "cuda/image.hpp"

#include <doctest/doctest.h>

#include <fstream>

#include "fixture.hpp"

using namespace mkrt;
using namespace mkrt::cuda;
using namespace mkrt::cuda::test;

namespace {

std::string best_of(std::vector<std::string> targets, int major, int minor) {
  package::Program program;
  for (const std::string& target : targets) program.images.push_back({target, target + ".file"});
  return choose_image(program, major, minor).target;
}

// What loading says where the image is `image` and the device `device`.
base::Failure refusal(const Work& work, const FakeImage& image, const SimulatedDevice& device = {}) {
  DriverDouble gpu({device});
  gpu.add_isa(host::test::test_isa());
  work.write_image(image);
  const auto mesh = make_mesh(gpu, rank_desc());
  const base::Failure failure = failure_of([&] { mesh->load(work.program, {}); });
  CHECK(gpu.live_objects() == 1);  // the mesh's context
  return failure;
}

// What comes of loading the work's program with `image`.
base::Failure load_with(const Work& work, const FakeImage& image) {
  DriverDouble gpu({SimulatedDevice{}});
  gpu.add_isa(host::test::test_isa());
  work.write_image(image);
  const auto mesh = make_mesh(gpu, rank_desc());
  try {
    mesh->load(work.program, {});
  } catch (const base::Failure& failure) {
    return failure;
  }
  return {MKRT_OK, ""};
}

// A program of one record, "wide", that reads a row of 32 KB, and an image that stages it in shared memory.
package::Program wide_program() {
  package::Program program;
  program.tensors.resize(1);
  program.tensors[0].dtype = package::Dtype::f32;
  program.entries.resize(1);
  package::Record& record = program.entries[0].records.emplace_back();
  record.label = "wide";
  record.operands.resize(1);
  record.operands[0].emplace();
  record.operands[0]->size = 8192;
  return program;
}
mkrt_image_info info_of_wide() {
  mkrt_image_info info = FakeImage(0).info;
  info.staged_operands[0] = 1;
  return info;
}

}  // namespace

TEST_CASE("targets suit the devices that can run them") {
  struct Case {
    const char* target;
    int major, minor;
    bool suits;
  };
  for (const Case& c : {Case{"sm_90a", 9, 0, true},  {"sm_90a", 10, 0, false},     {"sm_90a", 8, 9, false},
                        {"sm_90", 9, 0, true},       {"sm_80", 8, 0, true},        {"sm_80", 8, 6, true},
                        {"sm_80", 8, 9, true},       {"sm_86", 8, 0, false},       {"sm_80", 9, 0, false},
                        {"sm_100", 10, 0, true},     {"sm_100", 10, 3, true},      {"sm_100", 12, 0, false},
                        {"sm_100a", 10, 0, true},    {"sm_100a", 10, 3, false},    {"sm_100f", 10, 0, true},
                        {"sm_100f", 10, 3, true},    {"sm_100f", 12, 0, false},    {"sm_120", 12, 0, true},
                        {"sm_120", 12, 1, true},     {"compute_80", 8, 0, true},   {"compute_80", 12, 0, true},
                        {"compute_90", 8, 0, false}, {"compute_90a", 9, 0, false}, {"sm_", 9, 0, false},
                        {"sm_90ab", 9, 0, false},    {"sm_-90", 9, 0, false},      {"SM_90", 9, 0, false},
                        {"", 9, 0, false},           {"gfx90a", 9, 0, false},      {"sm_99999999999", 9, 0, false}}) {
    CAPTURE(c.target);
    CAPTURE(c.major);
    CAPTURE(c.minor);
    CHECK((target_score(c.target, c.major, c.minor) > 0) == c.suits);
  }
}

TEST_CASE("a device gets its own architecture before its family, the nearest older one before an older, and PTX last") {
  CHECK(best_of({"compute_90", "sm_80", "sm_90", "sm_90a"}, 9, 0) == "sm_90a");
  CHECK(best_of({"compute_90", "sm_90"}, 9, 0) == "sm_90");
  CHECK(best_of({"sm_100f", "sm_100a", "sm_100"}, 10, 0) == "sm_100a");
  CHECK(best_of({"sm_100f", "sm_100a", "sm_103"}, 10, 3) == "sm_100f");
  CHECK(best_of({"sm_80", "sm_86"}, 8, 0) == "sm_80");
  CHECK(best_of({"sm_80", "sm_86"}, 8, 9) == "sm_86");
  CHECK(best_of({"sm_86", "sm_80", "sm_89"}, 8, 6) == "sm_86");
  CHECK(best_of({"compute_80", "sm_80"}, 8, 9) == "sm_80");
  CHECK(best_of({"compute_80", "compute_90"}, 10, 0) == "compute_90");
  CHECK(best_of({"compute_80", "sm_90a"}, 10, 0) == "compute_80");
  CHECK(best_of({"compute_100", "compute_90"}, 12, 0) == "compute_100");
}

TEST_CASE("a package without an image for the device is refused with what it has") {
  const base::Failure failure = failure_of([] { best_of({"sm_80", "sm_120"}, 9, 0); });
  CHECK(failure.status() == MKRT_ERROR_UNSUPPORTED);
  CHECK(failure.message().find("9.0") != std::string::npos);
  CHECK(failure.message().find("sm_80, sm_120") != std::string::npos);
  CHECK(failure_of([] { best_of({}, 9, 0); }).message().find("none at all") != std::string::npos);
}

TEST_CASE("an image that was built for something else is refused before it is launched") {
  const Work work;
  const FakeImage good(work.program->isa.fingerprint);
  const auto check_refused = [&](const FakeImage& image, const std::string& part, const SimulatedDevice& device = {}) {
    const base::Failure failure = refusal(work, image, device);
    CHECK(failure.status() == MKRT_ERROR_UNSUPPORTED);
    CAPTURE(failure.message());
    CHECK(failure.message().find(part) != std::string::npos);
  };
  FakeImage image = good;
  SUBCASE("another instruction set") {
    image.info.isa_fingerprint ^= 1;
    check_refused(image, "was built for an instruction set with fingerprint");
  }
  SUBCASE("another launch interface") {
    image.info.launch_version += 1;
    check_refused(image, "launch interface");
  }
  SUBCASE("another layout of a launch") {
    image.info.launch_size += 8;
    check_refused(image, "launch interface");
  }
  SUBCASE("another layout of a record") {
    image.info.record_size += 8;
    check_refused(image, "launch interface");
  }
  SUBCASE("no description") {
    image.has_info = false;
    check_refused(image, "has no mkrt_image");
  }
  SUBCASE("a description of another size") {
    image.info_size -= 8;
    check_refused(image, "in a form that this library does not know");
  }
  SUBCASE("no kernel") {
    image.has_kernel = false;
    check_refused(image, "has no kernel mkrt_run");
  }
  SUBCASE("blocks that the device cannot have") {
    check_refused(image, "wants blocks of 384 threads", {.largest_block = 256});
  }
  SUBCASE("blocks that no device can have") {
    image.info.block_size = 0;
    check_refused(image, "wants blocks of 0 threads");
    image.info.block_size = 1025;
    check_refused(image, "wants blocks of 1025 threads, and the device allows 1024");
  }
  SUBCASE("a ring of no pages") {
    image.info.page_bytes = 0;
    check_refused(image, "impossible ring");
  }
  SUBCASE("a ring that prefers fewer pages than it needs") {
    image.info.preferred_pages = image.info.minimum_pages - 1;
    check_refused(image, "impossible ring");
  }
  SUBCASE("a ring that prefers more pages than it can have") {
    image.info.preferred_pages = image.info.maximum_pages + 1;
    check_refused(image, "impossible ring");
  }
  SUBCASE("an opcode that makes use of fewer rows than it needs") {
    image.info.more_rows[3] = 2;
    image.info.useful_rows[3] = 1;
    check_refused(image, "makes use of fewer rows than it needs");
  }
  SUBCASE("more shared memory than the device has") {
    check_refused(image, "bytes of shared memory", {.shared_memory = 70'000});
  }
  SUBCASE("no image of this device") { check_refused(image, "capability 12.0", {.major = 12, .minor = 0}); }
}

TEST_CASE("a program is refused where an operand names another rank that the image would not look at") {
  Work work;
  FakeImage image(work.program->isa.fingerprint);
  package::Record& record = work.program->entries[0].records[0];
  uint32_t operand = 0;
  while (!record.operands.at(operand)) ++operand;
  const package::OpcodeDefinition& opcode = work.program->isa.opcodes[record.opcode];
  for (const mkrt_rank_selector other :
       {mkrt_rank_selector{MKRT_RANK_ALL, 0xff, 0}, {MKRT_RANK_FIXED, 0xff, 0}, {MKRT_RANK_RELATIVE, 0xff, 1}}) {
    image.info.ranked_operands[record.opcode] = UINT32_MAX;
    record.operands[operand]->rank = other;
    CHECK(load_with(work, image).status() == MKRT_OK);
    image.info.ranked_operands[record.opcode] &= ~(1u << operand);
    const base::Failure failure = load_with(work, image);
    CHECK(failure.status() == MKRT_ERROR_UNSUPPORTED);
    CHECK(failure.message().ends_with(base::text("takes operand ", base::quoted(opcode.operands[operand].name), " of ",
                                                 base::quoted(opcode.name), " from the own rank only, and record ",
                                                 base::quoted(record.label), " names another")));
    record.operands[operand]->rank = {MKRT_RANK_SELF, 0xff, 0};
    CHECK(load_with(work, image).status() == MKRT_OK);
  }
}

TEST_CASE("a file that is no image is the driver's error, and one that is not there a file's") {
  const Work work;
  DriverDouble gpu;
  const auto mesh = make_mesh(gpu, rank_desc());
  std::ofstream(work.folder.path("test.sm_90.image")) << std::string(4096, 'x');
  const base::Failure failure = failure_of([&] { mesh->load(work.program, {}); });
  CHECK(failure.status() == MKRT_ERROR_DRIVER);
  CHECK(failure.driver_code() == 200);
  CHECK(failure.message().find("test.sm_90.image") != std::string::npos);
  std::filesystem::remove(work.folder.path("test.sm_90.image"));
  CHECK(failure_of([&] { mesh->load(work.program, {}); }).status() == MKRT_ERROR_FILE);
}

TEST_CASE("shared memory goes to whole rows as long as the ring keeps its pages, and else to pieces of rows") {
  mkrt_image_info info = info_of_wide();
  const package::Program program = wide_program();
  const auto available = [&](uint32_t pages, uint32_t buffer) {
    return info.fixed_shared_bytes + pages * info.page_bytes + 2 * buffer;
  };
  const uint32_t whole = 32768 + 128;  // a row and its padding, aligned
  const uint32_t piece = 4096 + 128;
  SharedMemoryPlan plan = plan_shared_memory(program, info, available(8, whole));
  CHECK(plan.activation_bytes == whole);
  CHECK(plan.page_count == 8);
  CHECK(plan.total_bytes <= available(8, whole));
  // Never more pages than the image wants.
  CHECK(plan_shared_memory(program, info, available(40, whole)).page_count == info.maximum_pages);
  // Too little for whole rows and eight pages: the buffers shrink.
  plan = plan_shared_memory(program, info, available(8, 8192));
  CHECK(plan.activation_bytes == 8192);
  CHECK(plan.page_count == 8);
  // Too little even for that: the least buffers, and the pages that are left.
  plan = plan_shared_memory(program, info, available(3, piece));
  CHECK(plan.activation_bytes == piece);
  CHECK(plan.page_count == 3);
  CHECK(plan_shared_memory(program, info, available(2, piece)).page_count == 2);
  const base::Failure failure = failure_of([&] { plan_shared_memory(program, info, available(2, piece) - 1); });
  CHECK(failure.status() == MKRT_ERROR_UNSUPPORTED);
  CHECK(failure.message() == base::text("record \"wide\" needs ", available(2, piece),
                                        " bytes of shared memory in a block, and the device has ",
                                        available(2, piece) - 1));
  // Where rows must be whole, pieces do not help; such rows are not padded.
  info.whole[0] = 1;
  CHECK(failure_of([&] { plan_shared_memory(program, info, available(2, piece)); }).status() == MKRT_ERROR_UNSUPPORTED);
  CHECK(failure_of([&] { plan_shared_memory(program, info, available(2, 32768) - 1); }).status() ==
        MKRT_ERROR_UNSUPPORTED);
  CHECK(plan_shared_memory(program, info, available(2, 32768)).activation_bytes == 32768);
}

TEST_CASE("rows whose bytes do not fit in 64 bits are too many") {
  package::Program program = wide_program();
  mkrt_image_info info = info_of_wide();
  info.whole[0] = 1;
  package::Operand& wide = *program.entries[0].records[0].operands[0];
  wide.size = uint64_t{1} << 31;  // 2^33 bytes
  wide.rows = uint32_t{1} << 31;
  CHECK(failure_of([&] { plan_shared_memory(program, info, 200'000); }).status() == MKRT_ERROR_UNSUPPORTED);
  // Together with another one, too.
  wide.rows = uint32_t{1} << 30;
  program.entries[0].records[0].operands.push_back(wide);
  info.staged_operands[0] = 3;
  CHECK(failure_of([&] { plan_shared_memory(program, info, 200'000); }).status() == MKRT_ERROR_UNSUPPORTED);
}

TEST_CASE("rows that may be brought in pieces have as many bytes as an image can count") {
  package::Program program = wide_program();
  const mkrt_image_info info = info_of_wide();
  package::Operand& wide = *program.entries[0].records[0].operands[0];
  REQUIRE(info.row_padding < 127);
  wide.size = UINT32_MAX / 128 * 128 / 4;
  CHECK_NOTHROW(plan_shared_memory(program, info, 200'000));
  ++wide.size;
  const base::Failure failure = failure_of([&] { plan_shared_memory(program, info, 200'000); });
  CHECK(failure.status() == MKRT_ERROR_UNSUPPORTED);
  CHECK(failure.message() == "record \"wide\" has rows of 4294967295 bytes or more for a block's shared memory");
}

TEST_CASE("rows that an image makes use of get room that the ring's pages leave") {
  mkrt_image_info info = info_of_wide();
  const package::Program program = wide_program();
  info.whole[0] = 1;
  info.more_rows[0] = 1;
  info.useful_rows[0] = 3;
  const uint32_t row = 32768;
  const auto available = [&](uint32_t pages, uint32_t buffer) {
    return info.fixed_shared_bytes + pages * info.page_bytes + 2 * buffer;
  };
  SharedMemoryPlan plan = plan_shared_memory(program, info, available(8, 4 * row));
  CHECK(plan.activation_bytes == 4 * row);
  CHECK(plan.page_count == 8);
  plan = plan_shared_memory(program, info, available(8, 3 * row));
  CHECK(plan.activation_bytes == 3 * row);
  CHECK(plan.page_count == 8);
  // The ring's pages come first, and the rows that are needed before both.
  plan = plan_shared_memory(program, info, available(4, 2 * row));
  CHECK(plan.activation_bytes == 2 * row);
  CHECK(plan.page_count == 4);
  CHECK(failure_of([&] { plan_shared_memory(program, info, available(2, 2 * row) - 1); }).status() ==
        MKRT_ERROR_UNSUPPORTED);
}

TEST_CASE("an image gets no more shared memory than it takes, and its ring the pages that it prefers") {
  mkrt_image_info info = info_of_wide();
  const package::Program program = wide_program();
  constexpr uint32_t device = 200'000;
  const SharedMemoryPlan all = plan_shared_memory(program, info, device);
  info.preferred_pages = 3;
  const SharedMemoryPlan wide = plan_shared_memory(program, info, device);
  CHECK(wide.activation_bytes > all.activation_bytes);
  CHECK(wide.page_count >= 3);
  CHECK(wide.page_count < all.page_count);
  info.maximum_shared_bytes = 100'000;
  const SharedMemoryPlan limited = plan_shared_memory(program, info, device);
  CHECK(limited.total_bytes <= 100'000);
  const SharedMemoryPlan same = plan_shared_memory(program, info, 100'000);
  CHECK(limited.activation_bytes == same.activation_bytes);
  CHECK(limited.page_count == same.page_count);
  info.maximum_shared_bytes = 70'000;
  CHECK(failure_of([&] { plan_shared_memory(program, info, device); })
            .message()
            .ends_with("needs 81216 bytes of shared memory in a block, and the image takes at most 70000"));
}
