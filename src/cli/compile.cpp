#include "compile/compile.hpp"

#include <filesystem>

#include "base/path.hpp"
#include "cli/commands.hpp"
#include "cli/error.hpp"
#include "cli/format.hpp"
#include "cli/images.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/tokenizer.hpp"

namespace mkrt::cli {
namespace {

std::vector<compile::ImageFile> choose_images(const CompileOptions& options) {
  if (options.no_images) return {};
  const std::string folder = options.images.empty() ? own_image_folder(kLlmKernel) : options.images;
  if (folder.empty()) return {};
  std::vector<compile::ImageFile> images = find_images(folder, kLlmKernel);
  if (images.empty()) throw Error(folder + " has no file mkrt_llm.TARGET.cubin");
  return images;
}

std::string describe(const std::vector<compile::ImageFile>& images) {
  if (images.empty()) return "without kernel images: it runs on the host device only";
  std::string text = "with kernels for ";
  for (const compile::ImageFile& image : images) text += (&image == images.data() ? "" : ", ") + image.target;
  return text;
}

// Why text prompts will not work with a package of this model, or nothing. Packages without text are of use, with
// --prompt-ids and for hosts that have a tokenizer of their own, so this is no reason to refuse the model.
std::string find_tokenizer_problem(const std::string& model) {
  const std::string path = model + "/tokenizer.json";
  if (!std::filesystem::exists(base::system_path(path))) return path + " does not exist";
  try {
    Tokenizer::read(path);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
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
  const std::string problem = find_tokenizer_problem(options.model);
  if (!problem.empty()) tell(problem + "; generate takes --prompt-ids or --tokenizer for this package, no --prompt");
  print("wrote " + options.package + ": " + format_bytes(weight_bytes) + " of weights" +
        (options.ranks > 1 ? " for " + std::to_string(options.ranks) + " ranks, " : ", ") + describe(images) + "\n");
  return 0;
}

}  // namespace mkrt::cli
