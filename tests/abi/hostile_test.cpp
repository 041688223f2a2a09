// What mkrt.h promises to callers that make mistakes: for each, the exact status, a sentence, and no output written.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "test_package.hpp"

namespace {

using test::Objects;
using test::Ready;
using test::TestPackage;

const TestPackage& package() {
  static const TestPackage shared;
  return shared;
}

// What a call that fails must give: the status in two places, and a sentence.
void check_fails(mkrt_status wanted, const std::function<mkrt_status(mkrt_error*)>& call) {
  mkrt_error error = MKRT_ERROR_INIT;
  std::memset(error.message, 'x', sizeof(error.message));
  CHECK(std::string(mkrt_status_name(call(&error))) == mkrt_status_name(wanted));
  CHECK(error.status == wanted);
  CHECK(error.struct_size == sizeof(error));
  CHECK(std::memchr(error.message, 0, sizeof(error.message)) != nullptr);
  CHECK(std::strlen(error.message) > 5);
  CHECK(call(nullptr) == wanted);  // out_error may be NULL
}

// A pointer that no call may have changed.
template <class Handle>
Handle* untouched() {
  return reinterpret_cast<Handle*>(uintptr_t{0x5a5a5a5a});
}

// Functions that no host mesh may call.
mkrt_device_memory_extension device_memory() {
  mkrt_device_memory_extension extension{};
  extension.base.struct_size = sizeof(extension);
  extension.base.type = MKRT_EXTENSION_DEVICE_MEMORY;
  extension.allocate = [](void*, uint32_t, uint64_t, uint64_t) { return uint64_t{0}; };
  extension.release = [](void*, uint32_t, uint64_t, uint64_t) {};
  return extension;
}

// A mesh of one process; nobody may be asked for more.
mkrt_process_extension one_process() {
  mkrt_process_extension extension{};
  extension.base.struct_size = sizeof(extension);
  extension.base.type = MKRT_EXTENSION_PROCESSES;
  extension.process_count = 1;
  extension.all_gather = [](void*, const void* data, uint32_t size, int32_t, uint64_t, void* out_data, int32_t* out,
                            mkrt_error*) {
    std::memcpy(out_data, data, size);
    *out = -1;
    return mkrt_status{MKRT_OK};
  };
  return extension;
}

mkrt_exchange_desc exchange_desc() {
  mkrt_exchange_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.process_count = 1;
  desc.address = "@mkrt-hostile";
  return desc;
}

}  // namespace

TEST_CASE("statuses have names, also those that this library does not know") {
  CHECK(std::string(mkrt_status_name(MKRT_OK)) == "MKRT_OK");
  CHECK(std::string(mkrt_status_name(MKRT_ERROR_INTERNAL)) == "MKRT_ERROR_INTERNAL");
  for (mkrt_status status = 0; status <= MKRT_ERROR_INTERNAL; ++status) {
    CHECK(std::string(mkrt_status_name(status)) != "MKRT_ERROR_?");
  }
  CHECK(std::string(mkrt_status_name(MKRT_ERROR_INTERNAL + 1)) == "MKRT_ERROR_?");
  CHECK(std::string(mkrt_status_name(-1)) == "MKRT_ERROR_?");
  CHECK(mkrt_version() == MKRT_VERSION);
}

TEST_CASE("NULL handles are MKRT_ERROR_HANDLE in every function, and destroying them does nothing") {
  const Ready ready(package());
  uint32_t number = 0;
  uint64_t value = 0;
  const char* text = nullptr;
  void* address = nullptr;
  float data[1] = {};
  mkrt_trace_tile trace{};
  mkrt_mesh* mesh = nullptr;
  mkrt_program* program = nullptr;
  mkrt_executable* executable = nullptr;
  mkrt_session* session = nullptr;
  mkrt_device_info device{};
  device.struct_size = sizeof(device);
  mkrt_program_info program_info{};
  program_info.struct_size = sizeof(program_info);
  mkrt_entry_info entry{};
  entry.struct_size = sizeof(entry);
  mkrt_record_info record{};
  record.struct_size = sizeof(record);
  mkrt_tensor_info tensor{};
  tensor.struct_size = sizeof(tensor);
  const auto is_handle_error = [](const std::function<mkrt_status(mkrt_error*)>& call) {
    check_fails(MKRT_ERROR_HANDLE, call);
  };
  is_handle_error([&](mkrt_error* e) { return mkrt_runtime_device_count(nullptr, &number, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_runtime_device_info(nullptr, 0, &device, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_mesh_create(nullptr, nullptr, &mesh, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_mesh_rank_count(nullptr, &number, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_mesh_device_info(nullptr, 0, &device, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_mesh_local_ranks(nullptr, &number, &number, e); });
  const mkrt_exchange_desc exchange = exchange_desc();
  mkrt_exchange* created = nullptr;
  mkrt_process_extension extension = one_process();
  is_handle_error([&](mkrt_error* e) { return mkrt_exchange_create(nullptr, &exchange, &created, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_exchange_get_extension(nullptr, &extension, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_program_load(nullptr, &package().program_desc, &program, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_program_get_info(nullptr, &program_info, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_program_entry_info(nullptr, 0, &entry, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_program_find_entry(nullptr, "scale", &number, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_program_record_info(nullptr, 0, 0, &record, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_program_tensor_info(nullptr, 0, &tensor, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_program_find_tensor(nullptr, "x", &number, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_program_metadata(nullptr, "author", &text, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_executable_create(nullptr, ready.mesh, nullptr, &executable, e); });
  is_handle_error(
      [&](mkrt_error* e) { return mkrt_executable_create(ready.program, nullptr, nullptr, &executable, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_session_create(nullptr, &session, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_session_reset(nullptr, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_session_write(nullptr, 0, 0, 0, data, 4, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_session_read(nullptr, 0, 0, 0, 4, data, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_session_tensor_address(nullptr, 0, 0, &address, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_execute(nullptr, nullptr, &value, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_session_query(nullptr, &value, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_session_wait(nullptr, 0, 0, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_session_cancel(nullptr, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_session_trace(nullptr, 1, e); });
  is_handle_error([&](mkrt_error* e) { return mkrt_session_read_trace(nullptr, 0, 1, &trace, e); });
  mkrt_runtime_destroy(nullptr);
  mkrt_mesh_destroy(nullptr);
  mkrt_exchange_destroy(nullptr);
  mkrt_program_destroy(nullptr);
  mkrt_executable_destroy(nullptr);
  mkrt_session_destroy(nullptr);
}

TEST_CASE("handles of another type and pointers that are no handles are MKRT_ERROR_HANDLE") {
  const Ready ready(package());
  uint32_t number = 0;
  uint64_t value = 0;
  mkrt_session* session = nullptr;
  check_fails(MKRT_ERROR_HANDLE, [&](mkrt_error* e) {
    return mkrt_runtime_device_count(reinterpret_cast<mkrt_runtime*>(ready.mesh), &number, e);
  });
  check_fails(MKRT_ERROR_HANDLE, [&](mkrt_error* e) {
    return mkrt_mesh_rank_count(reinterpret_cast<mkrt_mesh*>(ready.program), &number, e);
  });
  check_fails(MKRT_ERROR_HANDLE, [&](mkrt_error* e) {
    return mkrt_program_find_tensor(reinterpret_cast<mkrt_program*>(ready.executable), "x", &number, e);
  });
  check_fails(MKRT_ERROR_HANDLE, [&](mkrt_error* e) {
    return mkrt_session_create(reinterpret_cast<mkrt_executable*>(ready.session), &session, e);
  });
  check_fails(MKRT_ERROR_HANDLE, [&](mkrt_error* e) {
    return mkrt_session_query(reinterpret_cast<mkrt_session*>(ready.runtime), &value, e);
  });
  alignas(16) char memory[256] = {};
  check_fails(MKRT_ERROR_HANDLE,
              [&](mkrt_error* e) { return mkrt_session_query(reinterpret_cast<mkrt_session*>(memory), &value, e); });
  check_fails(MKRT_ERROR_HANDLE, [&](mkrt_error* e) {
    return mkrt_session_query(reinterpret_cast<mkrt_session*>(memory + 1), &value, e);
  });
  // Destroying them does nothing: the objects still work.
  mkrt_session_destroy(reinterpret_cast<mkrt_session*>(ready.mesh));
  mkrt_runtime_destroy(reinterpret_cast<mkrt_runtime*>(ready.session));
  CHECK(mkrt_mesh_rank_count(ready.mesh, &number, nullptr) == MKRT_OK);
  CHECK(mkrt_session_query(ready.session, &value, nullptr) == MKRT_OK);
}

TEST_CASE("a missing output or input pointer is MKRT_ERROR_ARGUMENT") {
  const Ready ready(package());
  uint32_t number = 0;
  const char* text = nullptr;
  mkrt_program* program = untouched<mkrt_program>();
  const auto is_argument_error = [](const std::function<mkrt_status(mkrt_error*)>& call) {
    check_fails(MKRT_ERROR_ARGUMENT, call);
  };
  is_argument_error([&](mkrt_error* e) { return mkrt_runtime_create(nullptr, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_runtime_device_count(ready.runtime, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_runtime_device_info(ready.runtime, 0, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_mesh_create(ready.runtime, nullptr, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_mesh_rank_count(ready.mesh, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_mesh_device_info(ready.mesh, 0, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_mesh_local_ranks(ready.mesh, nullptr, &number, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_mesh_local_ranks(ready.mesh, &number, nullptr, e); });
  is_argument_error(
      [&](mkrt_error* e) { return mkrt_program_load(ready.runtime, &package().program_desc, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_program_load(ready.runtime, nullptr, &program, e); });
  is_argument_error([&](mkrt_error* e) {
    mkrt_program_desc desc{};
    desc.struct_size = sizeof(desc);
    return mkrt_program_load(ready.runtime, &desc, &program, e);
  });
  CHECK(program == untouched<mkrt_program>());
  is_argument_error([&](mkrt_error* e) { return mkrt_program_get_info(ready.program, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_program_entry_info(ready.program, 0, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_program_find_entry(ready.program, "scale", nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_program_find_entry(ready.program, nullptr, &number, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_program_record_info(ready.program, 0, 0, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_program_tensor_info(ready.program, 0, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_program_find_tensor(ready.program, "x", nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_program_find_tensor(ready.program, nullptr, &number, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_program_metadata(ready.program, "author", nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_program_metadata(ready.program, nullptr, &text, e); });
  is_argument_error(
      [&](mkrt_error* e) { return mkrt_executable_create(ready.program, ready.mesh, nullptr, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_session_create(ready.executable, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_session_write(ready.session, 0, 0, 0, nullptr, 4, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_session_read(ready.session, 0, 0, 0, 4, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_session_tensor_address(ready.session, 0, 0, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_session_query(ready.session, nullptr, e); });
  is_argument_error([&](mkrt_error* e) { return mkrt_session_read_trace(ready.session, 0, 1, nullptr, e); });
  CHECK(mkrt_session_write(ready.session, 0, test::tensor_x, 0, nullptr, 0, nullptr) == MKRT_OK);
  CHECK(mkrt_session_read(ready.session, 0, test::tensor_x, 0, 0, nullptr, nullptr) == MKRT_OK);
  CHECK(mkrt_execute(ready.session, nullptr, nullptr, nullptr) == MKRT_OK);
}

TEST_CASE("struct sizes that are not known are MKRT_ERROR_STRUCT_SIZE for every struct") {
  const Ready ready(package());
  const auto check_sizes = [](uint32_t& struct_size, const std::function<mkrt_status(mkrt_error*)>& call) {
    const uint32_t known = struct_size;
    for (const uint32_t wrong : {0u, 1u, known - 8, known - 1, known + 1, known + 8, UINT32_MAX}) {
      CAPTURE(wrong);
      struct_size = wrong;
      check_fails(MKRT_ERROR_STRUCT_SIZE, call);
      CHECK(struct_size == wrong);
    }
    struct_size = known;
  };
  SUBCASE("mkrt_runtime_desc and its extension") {
    mkrt_runtime* runtime = untouched<mkrt_runtime>();
    mkrt_runtime_desc desc = package().runtime_desc();
    check_sizes(desc.struct_size, [&](mkrt_error* e) { return mkrt_runtime_create(&desc, &runtime, e); });
    mkrt_host_isa_extension extension = package().extension;
    desc.next = &extension.base;
    check_sizes(extension.base.struct_size, [&](mkrt_error* e) { return mkrt_runtime_create(&desc, &runtime, e); });
    mkrt_host_isa isa = package().isa;
    const mkrt_host_isa* const isas[] = {&isa};
    extension.isas = isas;
    check_sizes(isa.struct_size, [&](mkrt_error* e) { return mkrt_runtime_create(&desc, &runtime, e); });
    CHECK(runtime == untouched<mkrt_runtime>());
  }
  SUBCASE("mkrt_mesh_desc and mkrt_rank_desc") {
    mkrt_mesh* mesh = untouched<mkrt_mesh>();
    test::HostRanks ranks(2);
    const auto call = [&](mkrt_error* e) { return mkrt_mesh_create(ready.runtime, &ranks.desc, &mesh, e); };
    check_sizes(ranks.desc.struct_size, call);
    check_sizes(ranks.ranks[0].struct_size, call);
    check_sizes(ranks.ranks[1].struct_size, call);
    mkrt_device_memory_extension memory = device_memory();
    ranks.desc.next = &memory.base;
    check_sizes(memory.base.struct_size, call);
    mkrt_process_extension processes = one_process();
    ranks.desc.next = &processes.base;
    check_sizes(processes.base.struct_size, call);
    CHECK(mesh == untouched<mkrt_mesh>());
  }
  SUBCASE("mkrt_exchange_desc and what comes of it") {
    mkrt_exchange* exchange = untouched<mkrt_exchange>();
    mkrt_exchange_desc desc = exchange_desc();
    check_sizes(desc.struct_size,
                [&](mkrt_error* e) { return mkrt_exchange_create(ready.runtime, &desc, &exchange, e); });
    CHECK(exchange == untouched<mkrt_exchange>());
#if defined(__linux__)
    REQUIRE(mkrt_exchange_create(ready.runtime, &desc, &exchange, nullptr) == MKRT_OK);
    mkrt_process_extension extension = one_process();
    check_sizes(extension.base.struct_size,
                [&](mkrt_error* e) { return mkrt_exchange_get_extension(exchange, &extension, e); });
    mkrt_exchange_destroy(exchange);
    check_fails(MKRT_ERROR_HANDLE, [&](mkrt_error* e) { return mkrt_exchange_get_extension(exchange, &extension, e); });
#endif
  }
  SUBCASE("mkrt_program_desc") {
    mkrt_program* program = untouched<mkrt_program>();
    mkrt_program_desc desc = package().program_desc;
    check_sizes(desc.struct_size, [&](mkrt_error* e) { return mkrt_program_load(ready.runtime, &desc, &program, e); });
    CHECK(program == untouched<mkrt_program>());
  }
  SUBCASE("mkrt_executable_desc") {
    mkrt_executable* executable = untouched<mkrt_executable>();
    mkrt_executable_desc desc{};
    desc.struct_size = sizeof(desc);
    check_sizes(desc.struct_size, [&](mkrt_error* e) {
      return mkrt_executable_create(ready.program, ready.mesh, &desc, &executable, e);
    });
    CHECK(executable == untouched<mkrt_executable>());
  }
  SUBCASE("mkrt_execute_desc") {
    uint64_t value = 77;
    mkrt_execute_desc desc = test::execute_desc(test::entry_scale);
    check_sizes(desc.struct_size, [&](mkrt_error* e) { return mkrt_execute(ready.session, &desc, &value, e); });
    CHECK(value == 77);
  }
  SUBCASE("the infos") {
    mkrt_device_info device{};
    device.struct_size = sizeof(device);
    check_sizes(device.struct_size,
                [&](mkrt_error* e) { return mkrt_runtime_device_info(ready.runtime, 0, &device, e); });
    check_sizes(device.struct_size, [&](mkrt_error* e) { return mkrt_mesh_device_info(ready.mesh, 0, &device, e); });
    CHECK(device.worker_count == 0);
    mkrt_program_info program{};
    program.struct_size = sizeof(program);
    check_sizes(program.struct_size, [&](mkrt_error* e) { return mkrt_program_get_info(ready.program, &program, e); });
    mkrt_entry_info entry{};
    entry.struct_size = sizeof(entry);
    check_sizes(entry.struct_size, [&](mkrt_error* e) { return mkrt_program_entry_info(ready.program, 0, &entry, e); });
    mkrt_record_info record{};
    record.struct_size = sizeof(record);
    check_sizes(record.struct_size,
                [&](mkrt_error* e) { return mkrt_program_record_info(ready.program, 0, 0, &record, e); });
    mkrt_tensor_info tensor{};
    tensor.struct_size = sizeof(tensor);
    check_sizes(tensor.struct_size,
                [&](mkrt_error* e) { return mkrt_program_tensor_info(ready.program, 0, &tensor, e); });
    CHECK(tensor.name == nullptr);
  }
}

TEST_CASE("an mkrt_error of unknown size fails the call before it does anything, and is not written") {
  const Ready ready(package());
  mkrt_error error = MKRT_ERROR_INIT;
  error.struct_size = sizeof(error) + 8;
  const mkrt_error before = error;
  mkrt_runtime* runtime = untouched<mkrt_runtime>();
  CHECK(mkrt_runtime_create(nullptr, &runtime, &error) == MKRT_ERROR_STRUCT_SIZE);
  CHECK(runtime == untouched<mkrt_runtime>());
  uint64_t value = 77;
  CHECK(mkrt_execute(ready.session, nullptr, &value, &error) == MKRT_ERROR_STRUCT_SIZE);
  CHECK(mkrt_session_query(ready.session, &value, &error) == MKRT_ERROR_STRUCT_SIZE);
  CHECK(value == 77);
  CHECK(mkrt_session_cancel(nullptr, &error) == MKRT_ERROR_STRUCT_SIZE);
  CHECK(std::memcmp(&error, &before, sizeof(error)) == 0);
}

TEST_CASE("success leaves the error alone") {
  const Ready ready(package());
  mkrt_error error = MKRT_ERROR_INIT;
  std::memset(error.message, 'x', sizeof(error.message));
  error.status = 4711;
  const mkrt_error before = error;
  uint64_t value = 0;
  CHECK(mkrt_execute(ready.session, nullptr, &value, &error) == MKRT_OK);
  CHECK(mkrt_session_wait(ready.session, value, UINT64_MAX, &error) == MKRT_OK);
  CHECK(mkrt_session_query(ready.session, &value, &error) == MKRT_OK);
  CHECK(std::memcmp(&error, &before, sizeof(error)) == 0);
}

TEST_CASE("fields of an error that do not apply are -1 or 0") {
  mkrt_error error = MKRT_ERROR_INIT;
  CHECK(mkrt_session_cancel(nullptr, &error) == MKRT_ERROR_HANDLE);
  CHECK(error.driver_code == -1);
  CHECK(error.rank == -1);
  CHECK(error.worker == -1);
  CHECK(error.record == -1);
  CHECK(error.counter == -1);
  CHECK(error.tile == 0);
  CHECK(error.step == 0);
  CHECK(error.value_seen == 0);
  CHECK(error.value_wanted == 0);
  CHECK(error.reserved == 0);
}

TEST_CASE("extensions that are not known are MKRT_ERROR_EXTENSION on every chain") {
  const Ready ready(package());
  mkrt_extension unknown{};
  unknown.struct_size = sizeof(unknown);
  unknown.type = 4711;
  mkrt_runtime* runtime = nullptr;
  mkrt_mesh* mesh = nullptr;
  mkrt_program* program = nullptr;
  mkrt_executable* executable = nullptr;
  mkrt_runtime_desc runtime_desc{};
  runtime_desc.struct_size = sizeof(runtime_desc);
  runtime_desc.next = &unknown;
  check_fails(MKRT_ERROR_EXTENSION, [&](mkrt_error* e) { return mkrt_runtime_create(&runtime_desc, &runtime, e); });
  mkrt_host_isa_extension known = package().extension;
  known.base.next = &unknown;  // behind one that is known
  runtime_desc.next = &known.base;
  check_fails(MKRT_ERROR_EXTENSION, [&](mkrt_error* e) { return mkrt_runtime_create(&runtime_desc, &runtime, e); });
  test::HostRanks ranks;
  ranks.desc.next = &unknown;
  check_fails(MKRT_ERROR_EXTENSION,
              [&](mkrt_error* e) { return mkrt_mesh_create(ready.runtime, &ranks.desc, &mesh, e); });
  ranks.desc.next = &package().extension.base;  // known, but not here
  check_fails(MKRT_ERROR_EXTENSION,
              [&](mkrt_error* e) { return mkrt_mesh_create(ready.runtime, &ranks.desc, &mesh, e); });
  mkrt_program_desc program_desc = package().program_desc;
  program_desc.next = &unknown;
  check_fails(MKRT_ERROR_EXTENSION,
              [&](mkrt_error* e) { return mkrt_program_load(ready.runtime, &program_desc, &program, e); });
  mkrt_executable_desc executable_desc{};
  executable_desc.struct_size = sizeof(executable_desc);
  executable_desc.next = &unknown;
  check_fails(MKRT_ERROR_EXTENSION, [&](mkrt_error* e) {
    return mkrt_executable_create(ready.program, ready.mesh, &executable_desc, &executable, e);
  });
  mkrt_execute_desc execute_desc = test::execute_desc(test::entry_scale);
  execute_desc.next = &unknown;
  check_fails(MKRT_ERROR_EXTENSION,
              [&](mkrt_error* e) { return mkrt_execute(ready.session, &execute_desc, nullptr, e); });
}

TEST_CASE("a runtime description that contradicts itself is MKRT_ERROR_ARGUMENT") {
  mkrt_runtime* runtime = untouched<mkrt_runtime>();
  mkrt_runtime_desc desc = package().runtime_desc();
  const auto check_argument = [&] {
    check_fails(MKRT_ERROR_ARGUMENT, [&](mkrt_error* e) { return mkrt_runtime_create(&desc, &runtime, e); });
    CHECK(runtime == untouched<mkrt_runtime>());
  };
  SUBCASE("allocate without release") {
    desc.allocate = [](void*, size_t size, size_t) { return std::malloc(size); };
    check_argument();
  }
  SUBCASE("release without allocate") {
    desc.release = [](void*, void* memory, size_t, size_t) { std::free(memory); };
    check_argument();
  }
  SUBCASE("a level that does not exist") {
    desc.log_level = MKRT_LOG_DEBUG + 1;
    check_argument();
  }
  mkrt_host_isa_extension extension = package().extension;
  mkrt_host_isa isa = package().isa;
  const mkrt_host_isa* isas[] = {&isa};
  extension.isas = isas;
  desc.next = &extension.base;
  SUBCASE("the same extension twice, here in a circle") {
    extension.base.next = &extension.base;
    check_argument();
  }
  SUBCASE("a reserved field that is not zero") {
    extension.reserved = 1;
    check_argument();
  }
  SUBCASE("instruction sets that are not there") {
    extension.isas = nullptr;
    check_argument();
    isas[0] = nullptr;
    extension.isas = isas;
    check_argument();
  }
  SUBCASE("an instruction set without a name") {
    isa.name = nullptr;
    check_argument();
    isa.name = "";
    check_argument();
  }
  SUBCASE("an instruction set without functions") {
    isa.instructions = nullptr;
    check_argument();
    mkrt_host_instruction functions[std::size(test::instructions)] = {};
    functions[0] = test::instructions[0];
    isa.instructions = functions;
    check_argument();
  }
}

TEST_CASE("devices: the host is the last one, others are MKRT_ERROR_ARGUMENT") {
  const Ready ready(package());
  uint32_t count = 0;
  REQUIRE(mkrt_runtime_device_count(ready.runtime, &count, nullptr) == MKRT_OK);
  REQUIRE(count >= 1);
  mkrt_device_info info{};
  info.struct_size = sizeof(info);
  REQUIRE(mkrt_runtime_device_info(ready.runtime, count - 1, &info, nullptr) == MKRT_OK);
  CHECK(info.struct_size == sizeof(info));
  CHECK(info.kind == MKRT_DEVICE_HOST);
  CHECK(info.worker_count >= 1);
  CHECK(info.memory_bytes > 0);
  CHECK(info.memory_free > 0);
  CHECK(info.memory_free <= info.memory_bytes);
  CHECK(std::strlen(info.name) > 0);
  CHECK(std::strlen(info.target) > 0);
  for (const uint32_t index : {count, count + 1, UINT32_MAX}) {
    check_fails(MKRT_ERROR_ARGUMENT,
                [&](mkrt_error* e) { return mkrt_runtime_device_info(ready.runtime, index, &info, e); });
  }
  REQUIRE(mkrt_mesh_device_info(ready.mesh, 0, &info, nullptr) == MKRT_OK);
  CHECK(info.kind == MKRT_DEVICE_HOST);
  CHECK(info.worker_count == 2);
  for (const uint32_t rank : {1u, UINT32_MAX}) {
    check_fails(MKRT_ERROR_ARGUMENT, [&](mkrt_error* e) { return mkrt_mesh_device_info(ready.mesh, rank, &info, e); });
  }
}

TEST_CASE("meshes that cannot be are refused") {
  const Ready ready(package());
  mkrt_mesh* mesh = untouched<mkrt_mesh>();
  test::HostRanks ranks(2);
  const auto call = [&](mkrt_error* e) { return mkrt_mesh_create(ready.runtime, &ranks.desc, &mesh, e); };
  SUBCASE("too many ranks") {
    ranks.desc.rank_count = MKRT_MAX_RANKS + 1;
    check_fails(MKRT_ERROR_ARGUMENT, call);
    ranks.desc.rank_count = UINT32_MAX;
    check_fails(MKRT_ERROR_ARGUMENT, call);
  }
  SUBCASE("too many threads on a host rank") {
    ranks.ranks[1].worker_count = MKRT_MAX_HOST_WORKERS + 1;
    check_fails(MKRT_ERROR_ARGUMENT, call);
    ranks.ranks[1].worker_count = UINT32_MAX;
    check_fails(MKRT_ERROR_ARGUMENT, call);
  }
  SUBCASE("a kind that does not exist") {
    ranks.ranks[1].kind = 3;
    check_fails(MKRT_ERROR_ARGUMENT, call);
  }
  SUBCASE("a context or stream of CUDA on a host rank") {
    ranks.ranks[1].stream = &ranks;
    check_fails(MKRT_ERROR_ARGUMENT, call);
    ranks.ranks[1].stream = nullptr;
    ranks.ranks[0].context = &ranks;
    check_fails(MKRT_ERROR_ARGUMENT, call);
  }
  SUBCASE("a CUDA device's UUID on a host rank") {
    ranks.ranks[0].uuid[3] = 1;
    check_fails(MKRT_ERROR_ARGUMENT, call);
  }
  SUBCASE("ranks of two kinds") {
    ranks.ranks[1].kind = MKRT_DEVICE_CUDA;
    check_fails(MKRT_ERROR_ARGUMENT, call);
  }
  SUBCASE("more threads than a rank can have") {
    ranks.ranks[1].worker_count = UINT32_MAX;
    check_fails(MKRT_ERROR_ARGUMENT, call);
  }
  CHECK(mesh == untouched<mkrt_mesh>());
}

TEST_CASE("device memory of the application's own is for CUDA ranks, and needs both functions, once") {
  const Ready ready(package());
  mkrt_mesh* mesh = untouched<mkrt_mesh>();
  test::HostRanks ranks;
  mkrt_device_memory_extension memory = device_memory();
  ranks.desc.next = &memory.base;
  const auto call = [&](mkrt_error* e) { return mkrt_mesh_create(ready.runtime, &ranks.desc, &mesh, e); };
  check_fails(MKRT_ERROR_UNSUPPORTED, call);
  memory.base.next = &memory.base;
  check_fails(MKRT_ERROR_ARGUMENT, call);
  memory = device_memory();
  memory.allocate = nullptr;
  check_fails(MKRT_ERROR_ARGUMENT, call);
  memory = device_memory();
  memory.release = nullptr;
  check_fails(MKRT_ERROR_ARGUMENT, call);
  CHECK(mesh == untouched<mkrt_mesh>());
}

TEST_CASE("a host device does not trace, and says so") {
  const Ready ready(package());
  mkrt_trace_tile tile{};
  check_fails(MKRT_ERROR_UNSUPPORTED, [&](mkrt_error* e) { return mkrt_session_trace(ready.session, 4, e); });
  check_fails(MKRT_ERROR_UNSUPPORTED,
              [&](mkrt_error* e) { return mkrt_session_read_trace(ready.session, 0, 1, &tile, e); });
}

TEST_CASE("a CUDA rank without a CUDA device is MKRT_ERROR_DEVICE, never the host in silence") {
  const Ready ready(package());
  uint32_t count = 0;
  REQUIRE(mkrt_runtime_device_count(ready.runtime, &count, nullptr) == MKRT_OK);
  test::HostRanks ranks(1, 0);
  ranks.ranks[0].kind = MKRT_DEVICE_CUDA;
  ranks.ranks[0].ordinal = count - 1;  // one more than there are
  mkrt_mesh* mesh = untouched<mkrt_mesh>();
  check_fails(MKRT_ERROR_DEVICE, [&](mkrt_error* e) { return mkrt_mesh_create(ready.runtime, &ranks.desc, &mesh, e); });
  CHECK(mesh == untouched<mkrt_mesh>());
}

TEST_CASE("packages that are not there are MKRT_ERROR_FILE, those that are none MKRT_ERROR_FORMAT") {
  const Ready ready(package());
  const test::TemporaryFolder folder;
  mkrt_program* program = untouched<mkrt_program>();
  mkrt_program_desc desc = package().program_desc;
  const auto call = [&](mkrt_error* e) { return mkrt_program_load(ready.runtime, &desc, &program, e); };
  const std::string missing = folder.path() + "/missing";
  desc.path = missing.c_str();
  check_fails(MKRT_ERROR_FILE, call);
  desc.path = folder.path().c_str();  // empty folder
  check_fails(MKRT_ERROR_FILE, call);
  desc.path = "";
  check_fails(MKRT_ERROR_FILE, call);
  mkrt_error error = MKRT_ERROR_INIT;
  CHECK(call(&error) == MKRT_ERROR_FILE);
  CHECK(std::string(error.message) == "mkrt_program_desc.path is empty");
  folder.write("program.json", "{\"format\": \"something else\"}");
  desc.path = folder.path().c_str();
  check_fails(MKRT_ERROR_FORMAT, call);
  folder.write("program.json", test::program_json());
  check_fails(MKRT_ERROR_FILE, call);  // its weights are missing
  const std::string long_path(10 << 20, 'p');
  desc.path = long_path.c_str();
  check_fails(MKRT_ERROR_FILE, call);
  desc = package().program_desc;
  desc.reserved = 1;
  check_fails(MKRT_ERROR_ARGUMENT, call);
  CHECK(program == untouched<mkrt_program>());
}

TEST_CASE("a schedule that could race is MKRT_ERROR_SCHEDULE") {
  const Ready ready(package());
  const test::TemporaryFolder folder;
  test::write_package(folder);
  std::string json = test::program_json();
  const std::string wait = R"("wait": [{"counter": "scaled", "strides": [1]}], )";
  REQUIRE(json.find(wait) != std::string::npos);
  json.erase(json.find(wait), wait.size());
  folder.write("program.json", json);
  mkrt_program_desc desc = package().program_desc;
  desc.path = folder.path().c_str();
  mkrt_program* program = untouched<mkrt_program>();
  const auto call = [&](mkrt_error* e) { return mkrt_program_load(ready.runtime, &desc, &program, e); };
  check_fails(MKRT_ERROR_SCHEDULE, call);
  CHECK(program == untouched<mkrt_program>());

  // The sentence names the file, whichever of its two names the caller gave, and the error the record.
  const auto check_sentence = [&](const std::string& path, const std::string& start) {
    desc.path = path.c_str();
    mkrt_error error = MKRT_ERROR_INIT;
    CHECK(call(&error) == MKRT_ERROR_SCHEDULE);
    CHECK_MESSAGE(std::string(error.message).starts_with(start), error.message);
    CHECK(error.record >= 0);
    return std::string(error.message);
  };
  const std::string file = folder.path() + "/program.json";
  const std::string sentence = check_sentence(folder.path(), file + ": entry \"");
  CHECK(check_sentence(file, file + ": entry \"") == sentence);
  // The cause stays whole where a path is long.
  const std::string link = folder.path() + "/" + std::string(200, 'd');
  std::filesystem::create_directory_symlink(folder.path(), link);
  const std::string cut = check_sentence(link, "...");
  CHECK(cut.ends_with(sentence.substr(file.size() - std::strlen("/program.json"))));
}

TEST_CASE("a program tells what it holds, and what it does not hold is ARGUMENT or NOT_FOUND") {
  const Ready ready(package());
  mkrt_program_info info{};
  info.struct_size = sizeof(info);
  REQUIRE(mkrt_program_get_info(ready.program, &info, nullptr) == MKRT_OK);
  CHECK(info.struct_size == sizeof(info));
  CHECK(info.rank_count == 1);
  CHECK(info.entry_count == 4);
  CHECK(info.tensor_count == 7);
  CHECK(info.weight_bytes == 32);
  CHECK(info.session_bytes >= 4 * 128 + 2 * 4);
  CHECK(info.isa_fingerprint == package().isa.fingerprint);
  CHECK(std::string(info.isa_name) == "test.abi");

  mkrt_entry_info entry{};
  entry.struct_size = sizeof(entry);
  REQUIRE(mkrt_program_entry_info(ready.program, test::entry_scale, &entry, nullptr) == MKRT_OK);
  CHECK(entry.record_count == 2);
  CHECK(entry.counter_count == 8);
  CHECK(entry.tile_count == 8);
  CHECK(std::string(entry.name) == "scale");

  mkrt_record_info record{};
  record.struct_size = sizeof(record);
  REQUIRE(mkrt_program_record_info(ready.program, test::entry_scale, 0, &record, nullptr) == MKRT_OK);
  CHECK(record.wait_count == 1);
  CHECK(record.signal_count == 1);
  CHECK(record.grid[0] == 4);
  CHECK(record.grid[1] * record.grid[2] * record.grid[3] == 1);
  CHECK(record.tile_count == 4);
  CHECK(record.bytes_read == 4 * 32);
  CHECK(std::string(record.opcode) == "scale");
  CHECK(std::string(record.label) == "first");
  REQUIRE(mkrt_program_record_info(ready.program, test::entry_scale, 1, &record, nullptr) == MKRT_OK);
  CHECK(record.bytes_read == 0);
  CHECK(std::string(record.label).empty());

  mkrt_tensor_info tensor{};
  tensor.struct_size = sizeof(tensor);
  REQUIRE(mkrt_program_tensor_info(ready.program, test::tensor_sum, &tensor, nullptr) == MKRT_OK);
  CHECK(tensor.dtype == MKRT_DTYPE_F32);
  CHECK(tensor.kind == MKRT_TENSOR_STATE);
  CHECK(tensor.dimension_count == 2);
  CHECK(tensor.shape[0] == 4);
  CHECK(tensor.shape[1] == 8);
  CHECK(tensor.shape[2] == 0);
  CHECK(tensor.size_bytes == 128);
  CHECK(std::string(tensor.name) == "sum");

  uint32_t index = 77;
  for (uint32_t i = 0; i < info.tensor_count; ++i) {
    REQUIRE(mkrt_program_tensor_info(ready.program, i, &tensor, nullptr) == MKRT_OK);
    CHECK(mkrt_program_find_tensor(ready.program, tensor.name, &index, nullptr) == MKRT_OK);
    CHECK(index == i);
  }
  for (uint32_t i = 0; i < info.entry_count; ++i) {
    REQUIRE(mkrt_program_entry_info(ready.program, i, &entry, nullptr) == MKRT_OK);
    CHECK(mkrt_program_find_entry(ready.program, entry.name, &index, nullptr) == MKRT_OK);
    CHECK(index == i);
  }
  const char* value = nullptr;
  REQUIRE(mkrt_program_metadata(ready.program, "author", &value, nullptr) == MKRT_OK);
  CHECK(std::string(value) == "tests/abi");
  REQUIRE(mkrt_program_metadata(ready.program, "empty", &value, nullptr) == MKRT_OK);
  CHECK(std::string(value).empty());

  index = 77;
  const std::string huge(10 << 20, 'n');
  for (const char* name : {"", "X", "x ", "xx", huge.c_str()}) {
    check_fails(MKRT_ERROR_NOT_FOUND,
                [&](mkrt_error* e) { return mkrt_program_find_tensor(ready.program, name, &index, e); });
    check_fails(MKRT_ERROR_NOT_FOUND,
                [&](mkrt_error* e) { return mkrt_program_find_entry(ready.program, name, &index, e); });
    const char* found = untouched<const char>();
    check_fails(MKRT_ERROR_NOT_FOUND,
                [&](mkrt_error* e) { return mkrt_program_metadata(ready.program, name, &found, e); });
    CHECK(found == untouched<const char>());
  }
  CHECK(index == 77);
  for (const uint32_t wrong : {7u, UINT32_MAX}) {
    check_fails(MKRT_ERROR_ARGUMENT,
                [&](mkrt_error* e) { return mkrt_program_tensor_info(ready.program, wrong, &tensor, e); });
    check_fails(MKRT_ERROR_ARGUMENT,
                [&](mkrt_error* e) { return mkrt_program_entry_info(ready.program, wrong, &entry, e); });
    check_fails(MKRT_ERROR_ARGUMENT,
                [&](mkrt_error* e) { return mkrt_program_record_info(ready.program, wrong, 0, &record, e); });
    check_fails(MKRT_ERROR_ARGUMENT,
                [&](mkrt_error* e) { return mkrt_program_record_info(ready.program, 0, wrong, &record, e); });
  }
}

TEST_CASE("an executable needs a program and a mesh of one runtime, of as many ranks, and an instruction set") {
  const Ready ready(package());
  const Ready other(package());
  mkrt_executable* executable = untouched<mkrt_executable>();
  check_fails(MKRT_ERROR_ARGUMENT, [&](mkrt_error* e) {
    return mkrt_executable_create(ready.program, other.mesh, nullptr, &executable, e);
  });
  const test::HostRanks two(2, 1);
  mkrt_mesh* mesh = nullptr;
  REQUIRE(mkrt_mesh_create(ready.runtime, &two.desc, &mesh, nullptr) == MKRT_OK);
  check_fails(MKRT_ERROR_ARGUMENT,
              [&](mkrt_error* e) { return mkrt_executable_create(ready.program, mesh, nullptr, &executable, e); });
  mkrt_mesh_destroy(mesh);
  mkrt_executable_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.loader_threads = MKRT_MAX_LOADER_THREADS + 1;
  check_fails(MKRT_ERROR_ARGUMENT,
              [&](mkrt_error* e) { return mkrt_executable_create(ready.program, ready.mesh, &desc, &executable, e); });

  Objects bare;  // a runtime without the program's instruction set
  mkrt_runtime_desc runtime_desc{};
  runtime_desc.struct_size = sizeof(runtime_desc);
  const test::HostRanks one(1);
  mkrt_error error = MKRT_ERROR_INIT;
  CHECK(bare.create(runtime_desc, one.desc, package().program_desc, &error) == MKRT_ERROR_UNSUPPORTED);
  CHECK(std::string(error.message).find("test.abi") != std::string::npos);
  CHECK(bare.executable == nullptr);
  bare.destroy();
  CHECK(executable == untouched<mkrt_executable>());
}

TEST_CASE("a memory budget that is too small is MKRT_ERROR_OUT_OF_MEMORY") {
  const Ready ready(package());
  mkrt_executable_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.memory_budget = 1;
  mkrt_executable* executable = nullptr;
  mkrt_session* session = nullptr;
  mkrt_error error = MKRT_ERROR_INIT;
  mkrt_status status = mkrt_executable_create(ready.program, ready.mesh, &desc, &executable, &error);
  if (status == MKRT_OK) status = mkrt_session_create(executable, &session, &error);
  CHECK(status == MKRT_ERROR_OUT_OF_MEMORY);
  mkrt_session_destroy(session);
  mkrt_executable_destroy(executable);
}

TEST_CASE("reads and writes outside of what a session shares are MKRT_ERROR_ARGUMENT") {
  const Ready ready(package());
  float data[32] = {};
  data[0] = 1.0f;
  void* address = untouched<void>();
  const auto write = [&](uint32_t rank, uint32_t tensor, uint64_t offset, uint64_t size) {
    check_fails(MKRT_ERROR_ARGUMENT,
                [&](mkrt_error* e) { return mkrt_session_write(ready.session, rank, tensor, offset, data, size, e); });
  };
  const auto read = [&](uint32_t rank, uint32_t tensor, uint64_t offset, uint64_t size) {
    check_fails(MKRT_ERROR_ARGUMENT,
                [&](mkrt_error* e) { return mkrt_session_read(ready.session, rank, tensor, offset, size, data, e); });
  };
  const auto share = [&](uint32_t rank, uint32_t tensor) {
    check_fails(MKRT_ERROR_ARGUMENT,
                [&](mkrt_error* e) { return mkrt_session_tensor_address(ready.session, rank, tensor, &address, e); });
  };
  for (const uint32_t kept : {test::tensor_w, test::tensor_hidden}) {
    CAPTURE(kept);
    write(0, kept, 0, 4);
    read(0, kept, 0, 4);
    share(0, kept);
  }
  write(0, test::tensor_out, 0, 4);  // outputs can only be read
  for (const uint32_t tensor : {7u, UINT32_MAX}) {
    write(0, tensor, 0, 4);
    read(0, tensor, 0, 4);
    share(0, tensor);
  }
  for (const uint32_t rank : {1u, UINT32_MAX}) {
    write(rank, test::tensor_x, 0, 4);
    read(rank, test::tensor_x, 0, 4);
    share(rank, test::tensor_x);
  }
  struct Range {
    uint64_t offset, size;
  };
  for (const Range range :
       {Range{0, 129}, Range{128, 1}, Range{129, 0}, Range{4, 125}, Range{UINT64_MAX, 1}, Range{UINT64_MAX, 2},
        Range{4, UINT64_MAX}, Range{4, UINT64_MAX - 3}, Range{UINT64_MAX - 3, 4}, Range{0, UINT64_MAX}}) {
    CAPTURE(range.offset);
    CAPTURE(range.size);
    write(0, test::tensor_x, range.offset, range.size);
    read(0, test::tensor_x, range.offset, range.size);
  }
  CHECK(data[0] == 1.0f);
  CHECK(address == untouched<void>());
  CHECK(mkrt_session_write(ready.session, 0, test::tensor_x, 0, data, 128, nullptr) == MKRT_OK);
  CHECK(mkrt_session_write(ready.session, 0, test::tensor_x, 128, data, 0, nullptr) == MKRT_OK);
  CHECK(mkrt_session_read(ready.session, 0, test::tensor_out, 127, 1, data, nullptr) == MKRT_OK);
}

TEST_CASE("executes that cannot be are MKRT_ERROR_ARGUMENT and enqueue nothing") {
  const Ready ready(package());
  mkrt_execute_desc desc = test::execute_desc(test::entry_scale);
  uint64_t value = 77;
  const auto call = [&](mkrt_error* e) { return mkrt_execute(ready.session, &desc, &value, e); };
  SUBCASE("an entry that does not exist") {
    for (const uint32_t entry : {4u, UINT32_MAX}) {
      desc.entry = entry;
      check_fails(MKRT_ERROR_ARGUMENT, call);
    }
  }
  SUBCASE("a queue mode that does not exist") {
    desc.queue_mode = 2;
    check_fails(MKRT_ERROR_ARGUMENT, call);
  }
  SUBCASE("a reserved field that is not zero") {
    desc.reserved = 1;
    check_fails(MKRT_ERROR_ARGUMENT, call);
  }
  CHECK(value == 77);
  REQUIRE(mkrt_session_query(ready.session, &value, nullptr) == MKRT_OK);
  const uint64_t before = value;
  desc = test::execute_desc(test::entry_scale);
  REQUIRE(call(nullptr) == MKRT_OK);
  CHECK(value == before + 1);
}

TEST_CASE("a long sentence is cut, but ends") {
  const Ready ready(package());
  mkrt_error error = MKRT_ERROR_INIT;
  std::string path(3000, '/');
  for (int i = 0; i < 1000; ++i) path += "\xc3\xa9";  // two bytes a letter: the cut must not leave half of one
  mkrt_program_desc desc = package().program_desc;
  desc.path = path.c_str();
  mkrt_program* program = nullptr;
  CHECK(mkrt_program_load(ready.runtime, &desc, &program, &error) == MKRT_ERROR_FILE);
  CHECK(std::strlen(error.message) < sizeof(error.message));
}

TEST_CASE("an extension of processes and a description of an exchange are checked before anybody is asked") {
  const Ready ready(package());
  mkrt_mesh* mesh = untouched<mkrt_mesh>();
  test::HostRanks ranks(1);
  const auto create = [&](mkrt_error* e) { return mkrt_mesh_create(ready.runtime, &ranks.desc, &mesh, e); };
  mkrt_process_extension processes = one_process();
  ranks.desc.next = &processes.base;
  for (const auto& [process, count] : {std::pair{0u, 0u}, {1u, 1u}, {0u, MKRT_MAX_RANKS + 1u}, {UINT32_MAX, 2u}}) {
    processes.process = process;
    processes.process_count = count;
    check_fails(MKRT_ERROR_ARGUMENT, create);
  }
  processes = one_process();
  processes.all_gather = nullptr;
  check_fails(MKRT_ERROR_ARGUMENT, create);
  processes = one_process();
  mkrt_process_extension again = one_process();
  processes.base.next = &again.base;
  check_fails(MKRT_ERROR_ARGUMENT, create);
  again.base.next = &processes.base;  // a chain without an end
  check_fails(MKRT_ERROR_ARGUMENT, create);
  CHECK(mesh == untouched<mkrt_mesh>());
  processes.base.next = nullptr;
  REQUIRE(create(nullptr) == MKRT_OK);
  mkrt_mesh_destroy(mesh);

  mkrt_exchange* exchange = untouched<mkrt_exchange>();
  mkrt_exchange_desc desc = exchange_desc();
  const auto connect = [&](mkrt_error* e) { return mkrt_exchange_create(ready.runtime, &desc, &exchange, e); };
  const auto refuses = [&](const std::function<void()>& change) {
    desc = exchange_desc();
    change();
    check_fails(MKRT_ERROR_ARGUMENT, connect);
  };
  const std::string longest(101, 'x');
  refuses([&] { desc.address = nullptr; });
  refuses([&] { desc.address = ""; });
  refuses([&] { desc.address = longest.c_str(); });
  refuses([&] { desc.process = 1; });
  refuses([&] { desc.process_count = 0; });
  refuses([&] { desc.reserved = 1; });
  check_fails(MKRT_ERROR_ARGUMENT,
              [&](mkrt_error* e) { return mkrt_exchange_create(ready.runtime, nullptr, &exchange, e); });
  CHECK(exchange == untouched<mkrt_exchange>());
}
