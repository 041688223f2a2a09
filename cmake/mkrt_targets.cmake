# Functions that every folder's CMakeLists.txt uses to declare its targets, so that flags live in one place.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
find_program(MKRT_CCACHE ccache)
if(MKRT_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${MKRT_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MKRT_CCACHE})
endif()
find_package(Threads REQUIRED)

# What every target of ours is compiled with.
add_library(mkrt_flags INTERFACE)
target_include_directories(mkrt_flags INTERFACE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src"
                                                "${PROJECT_BINARY_DIR}/generated")
target_compile_options(mkrt_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow $<$<BOOL:${MKRT_WERROR}>:-Werror>)
# gcc 12 takes std::string's + for overlapping copies (its bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(mkrt_flags INTERFACE -Wno-restrict)
endif()
# gcc 13 and later take a reference into one argument for one into another, temporary one.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  target_compile_options(mkrt_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-dangling-reference>)
endif()
target_link_libraries(mkrt_flags INTERFACE Threads::Threads)
if(MKRT_SANITIZE)
  target_compile_options(mkrt_flags INTERFACE -fsanitize=${MKRT_SANITIZE} -fno-sanitize-recover=all
                                              -fno-omit-frame-pointer -g1)
  target_link_options(mkrt_flags INTERFACE -fsanitize=${MKRT_SANITIZE})
endif()

# mkrt_component(NAME SOURCES file... [DEPENDS component...]): one folder of the runtime as a static library of hidden
# symbols. `src/CMakeLists.txt` joins the runtime's components into the library that hosts link.
function(mkrt_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS")
  add_library(mkrt_${name} STATIC ${arg_SOURCES})
  target_link_libraries(mkrt_${name} PUBLIC mkrt_flags)
  foreach(dependency IN LISTS arg_DEPENDS)
    target_link_libraries(mkrt_${name} PUBLIC mkrt_${dependency})
  endforeach()
endfunction()

# mkrt_test(NAME SOURCES file... [MAIN file] [DEPENDS component...] [LABELS label...]): a doctest program and its CTest
# entry, with the main function of tests/doctest_main.cpp or one of its own. Target `tests_LABEL` builds the tests of
# one label and nothing else.
function(mkrt_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "MAIN" "SOURCES;DEPENDS;LABELS")
  if(NOT TARGET mkrt_doctest_main)  # compiled once for all tests: it takes longer than most of them
    add_library(mkrt_doctest_main OBJECT "${PROJECT_SOURCE_DIR}/tests/doctest_main.cpp")
    target_link_libraries(mkrt_doctest_main PRIVATE mkrt_flags)
  endif()
  add_executable(${name} ${arg_SOURCES} ${arg_MAIN})
  target_link_libraries(${name} PRIVATE mkrt_flags)
  if(NOT arg_MAIN)
    target_link_libraries(${name} PRIVATE mkrt_doctest_main)
  endif()
  foreach(dependency IN LISTS arg_DEPENDS)
    target_link_libraries(${name} PRIVATE mkrt_${dependency})
  endforeach()
  target_compile_definitions(${name} PRIVATE MKRT_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
                                             MKRT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  if(arg_LABELS)
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}")
  endif()
  foreach(label IN LISTS arg_LABELS)
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${name})
  endforeach()
endfunction()
