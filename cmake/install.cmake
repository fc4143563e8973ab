# Installed: both libraries, the command, the public headers, a CMake package and a pkg-config file. All of them
# are relocatable.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

file(STRINGS "${PROJECT_SOURCE_DIR}/include/rowmax/version.h" rowmax_version_line
  REGEX "ROWMAX_VERSION_STRING")
if(NOT rowmax_version_line MATCHES "\"${PROJECT_VERSION}\"")
  message(FATAL_ERROR "include/rowmax/version.h and project(VERSION ${PROJECT_VERSION}) differ")
endif()

set(rowmax_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/rowmax")
install(TARGETS rowmax EXPORT rowmaxTargets)
install(TARGETS rowmax_static EXPORT rowmaxStaticTargets)
if(ROWMAX_BUILD_APPS)
  install(TARGETS rowmax_command)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/rowmax" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h")
foreach(set rowmaxTargets rowmaxStaticTargets)
  install(EXPORT ${set} NAMESPACE rowmax:: DESTINATION "${rowmax_package_dir}")
endforeach()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/rowmaxConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/rowmaxConfig.cmake" INSTALL_DESTINATION "${rowmax_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/rowmaxConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/rowmaxConfig.cmake"
  "${PROJECT_BINARY_DIR}/rowmaxConfigVersion.cmake" DESTINATION "${rowmax_package_dir}")

# The way from lib/pkgconfig back to the prefix, whatever the depth of the library folder.
file(RELATIVE_PATH ROWMAX_PC_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" ROWMAX_PC_PREFIX "${ROWMAX_PC_PREFIX}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/rowmax.pc.in" "${PROJECT_BINARY_DIR}/rowmax.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/rowmax.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
