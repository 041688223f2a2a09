#include "compile/compile.hpp"

#include "cli/commands.hpp"
#include "cli/error.hpp"
#include "cli/format.hpp"
#include "cli/images.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"

namespace mkrt::cli {
namespace {

std::vector<compile::ImageFile> choose_images(const CompileOptions& options) {
  if (options.no_images) return {};
  const std::string folder = options.images.empty() ? own_image_folder() : options.images;
  if (folder.empty()) return {};
  std::vector<compile::ImageFile> images = find_images(folder);
  if (images.empty()) throw Error(folder + " has no file mkrt_llm.TARGET.cubin");
  return images;
}

std::string describe(const std::vector<compile::ImageFile>& images) {
  if (images.empty()) return "without kernel images: it runs on the host device only";
  std::string text = "with kernels for ";
  for (const compile::ImageFile& image : images) text += (&image == images.data() ? "" : ", ") + image.target;
  return text;
}

}  // namespace

int compile(const CompileOptions& options) {
  const std::vector<compile::ImageFile> images = choose_images(options);
  uint64_t weight_bytes = 0;
  {
    Progress progress("packing weights");
    compile::compile_model({options.model, options.package, options.batch, options.context, options.tile_rows,
                            options.splits, options.ranks, images},
                           [&](uint64_t done, uint64_t total) {
                             weight_bytes = total;
                             progress.update(done, total);
                           });
  }
  print("wrote " + options.package + ": " + format_bytes(weight_bytes) + " of weights, " + describe(images) + "\n");
  return 0;
}

}  // namespace mkrt::cli
