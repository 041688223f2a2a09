// Translation of one schedule record. The reader owns the order of things; this part only the record's form.
#pragma once

#include "package/json.hpp"
#include "package/name_index.hpp"
#include "package/program.hpp"

namespace mkrt::package {

// What a record may refer to: everything that comes before it in the file.
struct RecordContext {
  const Program& program;  // rank_count, isa and tensors are complete
  const NameIndex& opcodes;
  const NameIndex& tensors;
  const NameIndex& counters;                // of the entry
  const std::vector<CounterArray>& arrays;  // of the entry, complete
};

// `first_tile` is left for the reader to set. Throws base::Failure (FORMAT).
Record read_record(const JsonView& view, const RecordContext& context);

}  // namespace mkrt::package
