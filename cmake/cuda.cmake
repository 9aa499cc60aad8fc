# The CUDA back end: every src/cuda/*.cu becomes one fatbin (sm_80, sm_90, sm_100 and PTX), and all of
# them are embedded into the library. Only cuda.h is needed besides; libcuda is opened at run time.
#
# kvc_add_cuda(<object library>) adds it, or says that there is no nvcc and leaves it out.

set(KVC_CUDA AUTO CACHE STRING "Build the CUDA back end: ON, OFF, or AUTO (if nvcc is found)")
set(KVC_CUDA_ARCHITECTURES 80 90 100 CACHE STRING "Compute capabilities to build machine code for")

function(kvc_add_cuda target)
  if(NOT KVC_CUDA)
    return()
  endif()
  find_program(KVC_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(NOT KVC_NVCC)
    if(NOT KVC_CUDA STREQUAL "AUTO")
      message(FATAL_ERROR "KVC_CUDA is ${KVC_CUDA}, and nvcc was not found")
    endif()
    message(STATUS "No nvcc: building without CUDA")
    return()
  endif()

  list(SORT KVC_CUDA_ARCHITECTURES COMPARE NATURAL)
  set(codes)
  foreach(architecture ${KVC_CUDA_ARCHITECTURES})
    list(APPEND codes -gencode arch=compute_${architecture},code=sm_${architecture})
    set(newest ${architecture})
  endforeach()
  list(APPEND codes -gencode arch=compute_${newest},code=compute_${newest})
  list(JOIN KVC_CUDA_ARCHITECTURES "," capabilities)
  list(TRANSFORM KVC_CUDA_ARCHITECTURES PREPEND "sm_" OUTPUT_VARIABLE names)
  list(JOIN names " " names)

  get_filename_component(bin ${KVC_NVCC} DIRECTORY)
  file(REAL_PATH ${bin}/../include include)
  set(source ${CMAKE_SOURCE_DIR}/src)
  file(GLOB kernels CONFIGURE_DEPENDS ${source}/cuda/*.cu)
  file(GLOB headers CONFIGURE_DEPENDS ${source}/cuda/*.cuh ${source}/cuda/*_params.h)
  set(images)
  set(incbin)
  set(table)
  foreach(kernel ${kernels})
    get_filename_component(name ${kernel} NAME_WE)
    set(image ${CMAKE_BINARY_DIR}/generated/${name}.fatbin)
    # No fused multiply-add: results are byte-identical to the CPU's.
    add_custom_command(OUTPUT ${image}
      COMMAND ${KVC_NVCC} -fatbin -Xfatbin -compress-all -std=c++17 -O3 --fmad=false ${codes}
              -I ${source} -I ${CMAKE_SOURCE_DIR}/include -o ${image} ${kernel}
      DEPENDS ${kernel} ${headers} ${source}/base/sincos.h ${source}/base/float_formats.h
              ${source}/base/host_device.h ${source}/cpu/hash.h ${source}/cpu/rope.h
              ${CMAKE_SOURCE_DIR}/include/kvcanary.h
      COMMENT "Compiling the kernels of ${name}" VERBATIM)
    list(APPEND images ${image})
    string(APPEND incbin "__asm__(\".section .rodata\\n.balign 16\\nkvc__image_${name}:\\n\"\n"
      "        \".incbin \\\"${image}\\\"\\n.previous\\n\");\nextern const char kvc__image_${name}[];\n")
    string(APPEND table "\t{ \"${name}\", kvc__image_${name} },\n")
  endforeach()
  list(LENGTH images count)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/images.c @ONLY CONTENT
"/* The compiled kernels; written by cmake/cuda.cmake. */
#include \"cuda/images.h\"

@incbin@
const struct kvc__image kvc__images[] = {
@table@};
const int kvc__image_count = @count@;
")
  set_source_files_properties(${CMAKE_BINARY_DIR}/generated/images.c PROPERTIES
    OBJECT_DEPENDS "${images}")
  target_sources(${target} PRIVATE ${CMAKE_BINARY_DIR}/generated/images.c)
  target_compile_definitions(${target} PRIVATE KVC_WITH_CUDA)
  set_source_files_properties(${source}/cuda/devices.c PROPERTIES COMPILE_DEFINITIONS
    "KVC_CUDA_CAPABILITIES=${capabilities};KVC_CUDA_ARCHITECTURE_NAMES=\"${names} compute_${newest}\"")
  target_include_directories(${target} SYSTEM PRIVATE ${include})
endfunction()
