# Libraries of others. Only JSON is needed everywhere; what another one is for is left out where it is missing, with a
# line that says so. cmake/tools.env names the packages that have them.

include_guard(GLOBAL)

option(MKRT_HOST_LLM "Build the host device's code of mkrt.llm where there is Highway" ON)

# Target nlohmann_json::nlohmann_json: installed with its CMake package, or headers alone.
find_package(nlohmann_json 3.10 QUIET)
if(NOT TARGET nlohmann_json::nlohmann_json)
  find_path(MKRT_JSON_INCLUDE nlohmann/json.hpp REQUIRED)
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED GLOBAL)
  target_include_directories(nlohmann_json::nlohmann_json INTERFACE "${MKRT_JSON_INCLUDE}")
endif()

# Highway: only its headers are used.
find_path(MKRT_HIGHWAY_INCLUDE hwy/highway.h)
if(MKRT_HOST_LLM AND NOT MKRT_HIGHWAY_INCLUDE)
  message(STATUS "Host code of mkrt.llm: left out, no Highway; host ranks run only instruction sets of applications")
  set(MKRT_HOST_LLM OFF)
elseif(NOT MKRT_HOST_LLM)
  message(STATUS "Host code of mkrt.llm: left out, MKRT_HOST_LLM is OFF")
endif()

# CLI11: arguments of the mkrt tool, of test tools and of benchmarks of the host device.
find_package(CLI11 QUIET)

# PCRE2 and utf8proc: tokenizers of the mkrt tool.
find_path(PCRE2_INCLUDE_DIR pcre2.h)
find_library(PCRE2_LIBRARY pcre2-8)
find_path(UTF8PROC_INCLUDE_DIR utf8proc.h)
find_library(UTF8PROC_LIBRARY utf8proc)
set(MKRT_CLI ${MKRT_TOOLS})
foreach(needed CLI11_FOUND PCRE2_INCLUDE_DIR PCRE2_LIBRARY UTF8PROC_INCLUDE_DIR UTF8PROC_LIBRARY)
  if(MKRT_CLI AND NOT ${needed})
    string(REGEX REPLACE "_.*" "" library ${needed})
    message(STATUS "Tool mkrt: left out, no ${library}; the compiler library is built")
    set(MKRT_CLI OFF)
  endif()
endforeach()
