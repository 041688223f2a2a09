#include "compile/compile.hpp"

#include "cli/commands.hpp"
#include "cli/format.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"

namespace mkrt::cli {

int compile(const CompileOptions& options) {
  uint64_t weight_bytes = 0;
  {
    Progress progress("packing weights");
    compile::compile_model(
        {options.model, options.package, options.batch, options.context, options.tile_rows, options.splits},
        [&](uint64_t done, uint64_t total) {
          weight_bytes = total;
          progress.update(done, total);
        });
  }
  print("wrote " + options.package + " with " + format_bytes(weight_bytes) + " of weights\n");
  return 0;
}

}  // namespace mkrt::cli
