# SPDX-License-Identifier: Apache-2.0
# find_package(addend) gives addend::addend (C++, static) and addend::c (the shared C ABI).
include(CMakePackageConfigHelpers)
get_property(modules GLOBAL PROPERTY ADDEND_MODULES)
install(TARGETS ${modules} addend_addend addend_c EXPORT addend-targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET addend_cuda_kernels)
  install(TARGETS addend_cuda_kernels LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  if(TARGET addend) # has the core inside, and looks for the kernels by its own path
    set_property(TARGET addend PROPERTY INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  endif()
endif()
install(DIRECTORY include/addend DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT addend-targets NAMESPACE addend:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/addend)
configure_package_config_file(cmake/addend-config.cmake.in addend-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/addend)
write_basic_package_version_file(addend-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/addend-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/addend-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/addend)
if(TARGET addend)
  install(TARGETS addend RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
