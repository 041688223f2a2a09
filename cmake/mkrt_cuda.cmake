# Kernels: CUDA C++ sources built into cubins with nvcc. CMake's CUDA language is not used: it would make a compiler
# that most machines lack a condition of every build, and it links the CUDA runtime, which mkrt never does.

include_guard(GLOBAL)

option(MKRT_KERNELS "Build the kernels where there is an nvcc" ON)
set(MKRT_CUDA_ARCHITECTURES sm_80 sm_86 sm_90a sm_100 sm_120
    CACHE STRING "Targets that cubins are made for: A100, RTX 30 and 40, H100/H200, B200, RTX 50")

# Sources use what CUDA 13 brought; cmake/tools.env pins the release that `./run` installs.
function(_mkrt_nvcc_is_usable out_usable nvcc)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE status)
  string(REGEX MATCH "release ([0-9]+)" release "${text}")
  if(NOT status EQUAL 0 OR NOT CMAKE_MATCH_1 GREATER_EQUAL 13)
    set(${out_usable} FALSE PARENT_SCOPE)
  endif()
endfunction()

if(MKRT_KERNELS)
  file(GLOB _mkrt_nvcc_folders "${PROJECT_SOURCE_DIR}/build/cuda/lib/python3*/site-packages/nvidia/cu13/bin")
  find_program(MKRT_NVCC nvcc PATHS ${_mkrt_nvcc_folders} VALIDATOR _mkrt_nvcc_is_usable
               DOC "nvcc of CUDA 13 or later, for the kernels")
  if(MKRT_NVCC)
    message(STATUS "Kernels: ${MKRT_NVCC} for ${MKRT_CUDA_ARCHITECTURES}")
  else()
    message(STATUS "Kernels: skipped, no nvcc of CUDA 13 or later (set MKRT_NVCC); the host device needs none")
  endif()
endif()

# mkrt_cubin(TARGET SOURCES file.cu... [DEPENDS target...] [OPTIONS option...]): builds each file.cu into
# kernels/file.ARCHITECTURE.cubin of the build tree for every architecture. TARGET's property MKRT_CUBINS lists them.
# DEPENDS names targets that make generated headers. Without kernels the target exists and is empty.
function(mkrt_cubin target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS;OPTIONS")
  set(cubins)
  if(MKRT_KERNELS AND MKRT_NVCC)
    file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/kernels")
    foreach(source IN LISTS arg_SOURCES)
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
      cmake_path(GET source STEM LAST_ONLY stem)
      foreach(architecture IN LISTS MKRT_CUDA_ARCHITECTURES)
        set(cubin "${PROJECT_BINARY_DIR}/kernels/${stem}.${architecture}.cubin")
        add_custom_command(
          OUTPUT "${cubin}"
          COMMAND "${MKRT_NVCC}" -cubin -arch=${architecture} -std=c++20 -O3 -lineinfo -Werror all-warnings
                  -I "${PROJECT_SOURCE_DIR}/include" -I "${PROJECT_SOURCE_DIR}/kernels"
                  -I "${PROJECT_BINARY_DIR}/generated" ${arg_OPTIONS} -MD -MF "${cubin}.d" -o "${cubin}" "${source}"
          DEPENDS "${source}" ${arg_DEPENDS}
          DEPFILE "${cubin}.d"
          COMMENT "Building kernel ${stem} for ${architecture}"
          VERBATIM)
        list(APPEND cubins "${cubin}")
      endforeach()
    endforeach()
  endif()
  add_custom_target(${target} ALL DEPENDS ${cubins})
  set_target_properties(${target} PROPERTIES MKRT_CUBINS "${cubins}")
  set_property(GLOBAL APPEND PROPERTY MKRT_ALL_CUBINS ${cubins})
endfunction()
