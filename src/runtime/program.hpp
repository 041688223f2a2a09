// A package that was read and verified, and what can be asked about it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mkrt/mkrt.h"
#include "package/program.hpp"
#include "runtime/runtime.hpp"

namespace mkrt::runtime {

// Immutable. Strings that it returns live as long as it does. Indices out of range throw Failure(ARGUMENT), unknown
// names Failure(NOT_FOUND).
class Program {
 public:
  Program(std::shared_ptr<Runtime> runtime, std::shared_ptr<const package::Program> package);

  const std::shared_ptr<Runtime>& runtime() const noexcept { return runtime_; }
  const std::shared_ptr<const package::Program>& package() const noexcept { return package_; }

  mkrt_program_info info() const noexcept;
  mkrt_entry_info entry_info(uint32_t index) const;
  mkrt_record_info record_info(uint32_t entry, uint32_t record) const;
  mkrt_tensor_info tensor_info(uint32_t index) const;
  uint32_t find_entry(std::string_view name) const;
  uint32_t find_tensor(std::string_view name) const;
  const char* metadata(std::string_view key) const;

 private:
  std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<const package::Program> package_;
  uint64_t weight_bytes_ = 0;              // on one rank
  uint64_t session_bytes_ = 0;             // on one rank
  std::vector<uint32_t> tensors_by_name_;  // indices, sorted by name: hosts may ask for thousands
};

// Reads and verifies the package at `path`. Throws Failure with a sentence that says what is wrong and where.
std::shared_ptr<Program> load_program(std::shared_ptr<Runtime> runtime, const char* path);

}  // namespace mkrt::runtime
