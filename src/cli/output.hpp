// Standard output: everything that the tool says goes through here, so that a closed one is noticed at once.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace mkrt::cli {

// The reader of standard output has gone: nothing is left to do, and nobody is left to tell.
class OutputClosed : public std::exception {
 public:
  const char* what() const noexcept override { return "standard output was closed"; }
};

// Makes a closed pipe an error of write() instead of a signal, and keeps the numbers of closed standard streams from
// being given to files that are opened later. To be called once, before anything else.
void prepare_standard_streams();

// A line for people beside the output proper: on standard error, as the tool's failures are.
void tell(const std::string& sentence);

// Writes all of `text` now. Throws OutputClosed where nobody reads, Error where writing fails.
void print(std::string_view text);

}  // namespace mkrt::cli
