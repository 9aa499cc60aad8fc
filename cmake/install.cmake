# What 'make install' puts where: both libraries, the headers, the command, and what pkg-config and
# find_package need. Everything is relative to the prefix, so that an installed tree can be moved.
include(CMakePackageConfigHelpers)

install(TARGETS kvcanary_static kvcanary_shared EXPORT kvcanary-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/kvcanary)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")
if(KVC_BUILD_CLI)
  install(TARGETS kvcanary DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES docs/kvcanary.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES tools/completion/kvcanary.bash RENAME kvcanary
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES tools/completion/_kvcanary
    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
endif()

# The .pc file finds its prefix from where it lies (pcfiledir), whatever the depth of libdir.
file(RELATIVE_PATH kvc_pc_prefix "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
file(RELATIVE_PATH kvc_pc_libdir "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_LIBDIR}")
file(RELATIVE_PATH kvc_pc_includedir "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
string(REGEX REPLACE "/$" "" kvc_pc_prefix "${kvc_pc_prefix}")
configure_file(cmake/kvcanary.pc.in ${CMAKE_BINARY_DIR}/kvcanary.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/kvcanary.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(kvc_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvcanary)
install(EXPORT kvcanary-targets NAMESPACE kvcanary:: DESTINATION ${kvc_package_dir})
configure_package_config_file(cmake/kvcanary-config.cmake.in
  ${CMAKE_BINARY_DIR}/kvcanary-config.cmake INSTALL_DESTINATION ${kvc_package_dir}
  NO_SET_AND_CHECK_MACRO)
# Before 1.0 a new minor version may change the interface.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/kvcanary-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/kvcanary-config.cmake
  ${CMAKE_BINARY_DIR}/kvcanary-config-version.cmake DESTINATION ${kvc_package_dir})

# The wheel: the library and the command in the package's own folder, nothing else.
if(KVC_WHEEL)
  set_target_properties(kvcanary PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS kvcanary_shared LIBRARY DESTINATION kvcanary/lib COMPONENT wheel)
  install(TARGETS kvcanary RUNTIME DESTINATION kvcanary/lib COMPONENT wheel)
endif()
