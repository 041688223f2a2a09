// Reading one of a model folder's JSON files.
#pragma once

#include <string>
#include <string_view>

#include "base/mapped_file.hpp"
#include "package/json.hpp"

namespace mkrt::compile {

// Throws base::Failure: FILE, or FORMAT with the place of what is not JSON.
inline package::Json read_json(const std::string& path) {
  const base::MappedFile file(path);
  return package::parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
}

}  // namespace mkrt::compile
