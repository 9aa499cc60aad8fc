# Checks of the tree, the header and the installed product. They look at files, not at the behaviour
# of the compiled code, so the sanitizer runs leave them out (label "tree"), as they do the browser's ("html").
set(kvc_static_file $<TARGET_FILE:kvcanary_static>)
set(kvc_shared_file $<TARGET_FILE:kvcanary_shared>)

# kvc_tree_check(name command...): one CTest entry; exit 77 is a skip.
function(kvc_tree_check name)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS tree SKIP_RETURN_CODE 77)
endfunction()

kvc_tree_check(tree_lint ${Python3_EXECUTABLE} tests/lint.py)
kvc_tree_check(tree_python_abi ${Python3_EXECUTABLE} python/generate_abi.py --check)
kvc_tree_check(tree_kinds ${Python3_EXECUTABLE} tests/check_kinds.py)
kvc_tree_check(tree_api_errors ${Python3_EXECUTABLE} tests/check_api_errors.py)
if(KVC_BUILD_CLI)
  set(kvc_command_file $<TARGET_FILE:kvcanary>)
endif()
kvc_tree_check(tree_readme ${Python3_EXECUTABLE} tests/check_readme.py $<TARGET_FILE:example_hello>
  ${kvc_command_file})
kvc_tree_check(tree_header bash tests/check_header.sh . ${CMAKE_BINARY_DIR}/generated
  ${kvc_static_file})
kvc_tree_check(tree_setup bash tests/check_setup.sh .)
kvc_tree_check(tree_symbols ${Python3_EXECUTABLE} tests/check_symbols.py
  ${kvc_shared_file} ${kvc_static_file})
if(KVC_BUILD_CLI)
  # The man page and the completions say what --help says.
  kvc_tree_check(tree_manual ${Python3_EXECUTABLE} tools/make_manual.py --check
    --command $<TARGET_FILE:kvcanary>)
  kvc_tree_check(tree_install bash tests/check_install.sh . ${CMAKE_BINARY_DIR})
endif()
