// How the tool reports failure: one sentence, printed by main, exit code 1.
#pragma once

#include <stdexcept>

namespace mkrt::cli {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace mkrt::cli
