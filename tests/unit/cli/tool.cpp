#include "tool.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace mkrt::cli {

TemporaryFolder::TemporaryFolder() {
  path_ = (std::filesystem::temp_directory_path() / "mkrt_tool_XXXXXX").string();
  REQUIRE(mkdtemp(path_.data()) != nullptr);
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

ToolProcess::ToolProcess(const std::vector<std::string>& arguments) {
  static const TemporaryFolder folder;
  static int count = 0;
  errors_path_ = folder.path() + "/errors" + std::to_string(count++);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  std::vector<char*> argv = {const_cast<char*>(MKRT_TOOL)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  REQUIRE(pid_ >= 0);
  if (pid_ == 0) {
    const int errors = open(errors_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(ends[1], STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    execv(MKRT_TOOL, argv.data());
    _exit(127);
  }
  close(ends[1]);
  output_ = ends[0];
}

ToolProcess::~ToolProcess() {
  close_output();
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

std::string ToolProcess::read_some() {
  char buffer[65536];
  const ssize_t size = output_ < 0 ? 0 : read(output_, buffer, sizeof buffer);
  std::string text(buffer, size > 0 ? static_cast<size_t>(size) : 0);
  output_read_ += text;
  return text;
}

void ToolProcess::close_output() {
  if (output_ >= 0) close(output_);
  output_ = -1;
}

void ToolProcess::send_signal(int signal) const {
  REQUIRE(pid_ > 0);  // -1 would mean every process of the machine
  kill(pid_, signal);
}

Outcome ToolProcess::finish() {
  while (!read_some().empty()) {
  }
  int status = 0;
  REQUIRE(waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  std::ostringstream errors;
  errors << std::ifstream(errors_path_).rdbuf();
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), output_read_, errors.str()};
}

Outcome run_tool(const std::vector<std::string>& arguments) { return ToolProcess(arguments).finish(); }

const std::string& novelist_package() {
  static const TemporaryFolder folder;
  static const std::string package = [] {
    std::string path = folder.path() + "/novelist";
    const Outcome compiled = run_tool({"compile", MKRT_TEST_DATA "/novelist", "-o", path});
    REQUIRE_MESSAGE(compiled.exit_code == 0, compiled.errors);
    REQUIRE(compiled.errors.empty());  // standard error is no terminal here: no progress bar
    return path;
  }();
  return package;
}

}  // namespace mkrt::cli
