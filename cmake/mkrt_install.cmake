# `cmake --install`: libraries, headers, the tool, cubins, and what find_package(mkrt) and pkg-config read.
# Everything can be moved: no installed file holds the prefix.

include(CMakePackageConfigHelpers)

install(TARGETS mkrt mkrt_static EXPORT mkrt_targets)
if(TARGET mkrt_tool)
  install(TARGETS mkrt_tool)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/mkrt" TYPE INCLUDE FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
get_property(mkrt_cubins GLOBAL PROPERTY MKRT_ALL_CUBINS)
if(mkrt_cubins)
  install(FILES ${mkrt_cubins} DESTINATION "${CMAKE_INSTALL_DATADIR}/mkrt/kernels")
endif()

set(mkrt_package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/mkrt")
install(EXPORT mkrt_targets NAMESPACE mkrt:: DESTINATION "${mkrt_package_folder}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/mkrt-config.cmake.in"
                              "${PROJECT_BINARY_DIR}/cmake/mkrt-config.cmake"
                              INSTALL_DESTINATION "${mkrt_package_folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/mkrt-config-version.cmake" COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/cmake/mkrt-config.cmake" "${PROJECT_BINARY_DIR}/cmake/mkrt-config-version.cmake"
        DESTINATION "${mkrt_package_folder}")

# pkg-config finds the prefix from its file's own place.
file(RELATIVE_PATH mkrt_prefix_from_pc "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file("${PROJECT_SOURCE_DIR}/cmake/mkrt.pc.in" "${PROJECT_BINARY_DIR}/cmake/mkrt.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/cmake/mkrt.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
