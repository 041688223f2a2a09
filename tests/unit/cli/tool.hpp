// Runs the tool as a process, for tests.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace mkrt::cli {

struct Outcome {
  int exit_code;  // -N where signal N ended the process
  std::string output, errors;
};

class ToolProcess {
 public:
  explicit ToolProcess(const std::vector<std::string>& arguments);
  ToolProcess(const ToolProcess&) = delete;
  ToolProcess& operator=(const ToolProcess&) = delete;
  ~ToolProcess();  // ends the process where it still runs

  // What came on standard output next, at least one byte; empty at its end.
  std::string read_some();
  void close_output();
  void send_signal(int signal) const;
  // Reads standard output to its end and waits for the process.
  Outcome finish();

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string errors_path_;
  std::string output_read_;
};

Outcome run_tool(const std::vector<std::string>& arguments);

// A folder of the system's temporary folder that is gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The novelist's package, compiled once for all tests of the program.
const std::string& novelist_package();

}  // namespace mkrt::cli
