# SPDX-License-Identifier: Apache-2.0
# The wheel (pyproject.toml): libaddend.so beside the Python files, together with what a machine without our build packages
# lacks. The C++ runtime goes inside; Highway, of which distributions have only the shared library, beside it.
set_property(TARGET addend_c PROPERTY VERSION) # a wheel cannot hold symbolic links: one file, no version in its name
set_property(TARGET addend_c PROPERTY SOVERSION)
set_property(TARGET addend_c PROPERTY INSTALL_RPATH "$ORIGIN")
target_link_options(addend_c PRIVATE -static-libstdc++ -static-libgcc)
install(TARGETS addend_c LIBRARY DESTINATION . COMPONENT python)
if(TARGET addend_cuda_kernels) # looked for beside libaddend.so; without it everything runs on the CPU
  install(TARGETS addend_cuda_kernels LIBRARY DESTINATION . COMPONENT python)
endif()

install(CODE "set(library \"$<TARGET_FILE:addend_c>\")" COMPONENT python)
install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES LIBRARIES "${library}" PRE_INCLUDE_REGEXES "^libhwy" PRE_EXCLUDE_REGEXES "."
       RESOLVED_DEPENDENCIES_VAR dependencies)
  foreach(dependency IN LISTS dependencies)
    get_filename_component(name "${dependency}" NAME) # as the loader will ask for it
    file(REAL_PATH "${dependency}" file)
    message(STATUS "Installing: ${CMAKE_INSTALL_PREFIX}/${name}")
    file(COPY_FILE "${file}" "${CMAKE_INSTALL_PREFIX}/${name}")
  endforeach()
]] COMPONENT python)
