#include "cli/read_package.hpp"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/path.hpp"
#include "cli/error.hpp"

namespace mkrt::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// What a warp reads at a time: bulk copies reach an H200's read limit with pieces of this size too.
constexpr uint64_t kTileBytes = 16384;

ordered_json link_images(const fs::path& folder, const std::vector<compile::ImageFile>& images) {
  ordered_json list = ordered_json::array();
  for (const compile::ImageFile& image : images) {
    const std::string name = "mkrt.read." + image.target + ".cubin";
    std::error_code error;
    fs::create_symlink(fs::absolute(base::system_path(image.path)), folder / name, error);
    if (error) throw Error(base::utf8_path(folder / name) + ": " + error.message());
    list.push_back({{"target", image.target}, {"file", name}});
  }
  return list;
}

}  // namespace

void write_read_package(const fs::path& folder, uint64_t bytes, uint32_t rank_count,
                        const std::vector<compile::ImageFile>& images) {
  constexpr uint64_t tile = kTileBytes / sizeof(uint32_t);
  ordered_json record;
  record["op"] = "read";
  record["tiles"] = ordered_json::array({bytes / kTileBytes});
  record["operands"]["data"] = {{"tensor", "data"}, {"size", tile}, {"strides", ordered_json::array({tile})}};
  ordered_json tensor;
  tensor["name"] = "data";
  tensor["dtype"] = "u32";
  tensor["shape"] = ordered_json::array({bytes / sizeof(uint32_t)});
  tensor["kind"] = "input";
  ordered_json entry;
  entry["name"] = "read";
  entry["counters"] = ordered_json::array();
  entry["records"] = ordered_json::array({record});
  ordered_json program;
  program["format"] = "mkrt.program";
  program["version"] = 1;
  program["ranks"] = rank_count;
  program["isa"] = ordered_json::parse(kReadIsaJson);
  program["images"] = link_images(folder, images);
  program["metadata"] = ordered_json::object();
  program["weights"] = ordered_json::array();
  program["tensors"] = ordered_json::array({tensor});
  program["entries"] = ordered_json::array({entry});
  const fs::path path = folder / "program.json";
  std::ofstream file(path, std::ios::binary);
  file << program.dump();
  file.close();
  if (!file) throw Error(base::utf8_path(path) + " cannot be written");
}

}  // namespace mkrt::cli
