// Reading a package. src/package/README.md specifies the form and which status each failure has.
#pragma once

#include <string>
#include <string_view>

#include "package/program.hpp"

namespace mkrt::package {

// The program.json of the package at `path`, its folder or that file itself; it need not be there.
std::string program_file(const std::string& path);

// Reads the package at `path`, its folder or its program.json, and maps its weight files. What the comments of
// program.hpp state then holds; what the schedule promises beyond its form is for verify/ to check.
//
// program.json is translated as it is parsed: beside the Program, only one record is in memory at a time. Throws
// base::Failure: FILE, FORMAT or UNSUPPORTED, with a sentence that names the file, the JSON pointer and what is wrong.
Program read_package(const std::string& path);

// The same for the text of a program.json that need not be a file: `folder` holds the files that it names, messages
// call it `file`.
Program parse_program(std::string_view text, const std::string& folder, const std::string& file);

}  // namespace mkrt::package
