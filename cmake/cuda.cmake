# The CUDA back end: every src/cuda/*.cu becomes one fatbin (sm_80, sm_90, sm_100 and PTX), and all of
# them are embedded into the library. Only cuda.h is needed besides; libcuda is opened at run time.
#
# kvc_add_cuda(<object library>) adds its host half and sets KVC_HAS_CUDA, or says that there is no nvcc
# and leaves it out. kvc_add_kernels(<name> [flags]) makes <name>, an object library of the kernels.

set(KVC_CUDA AUTO CACHE STRING "Build the CUDA back end: ON, OFF, or AUTO (if nvcc is found)")
set(KVC_CUDA_ARCHITECTURES 80 90 100 CACHE STRING "Compute capabilities to build machine code for")

function(kvc_add_cuda target)
  set(KVC_HAS_CUDA OFF PARENT_SCOPE)
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

  foreach(architecture ${KVC_CUDA_ARCHITECTURES})
    if(NOT architecture MATCHES "^[0-9]+$")
      message(FATAL_ERROR "KVC_CUDA_ARCHITECTURES has ${architecture}: only plain numbers such as 90 are taken "
        "(the kernels use nothing that 90a adds, and 90's code runs there)")
    endif()
  endforeach()
  list(SORT KVC_CUDA_ARCHITECTURES COMPARE NATURAL)
  list(GET KVC_CUDA_ARCHITECTURES -1 newest)
  list(JOIN KVC_CUDA_ARCHITECTURES "," capabilities)
  list(TRANSFORM KVC_CUDA_ARCHITECTURES PREPEND "sm_" OUTPUT_VARIABLE names)
  list(JOIN names " " names)
  get_filename_component(bin ${KVC_NVCC} DIRECTORY)
  file(REAL_PATH ${bin}/../include include)
  target_compile_definitions(${target} PRIVATE KVC_WITH_CUDA)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/cuda/devices.c PROPERTIES COMPILE_DEFINITIONS
    "KVC_CUDA_CAPABILITIES=${capabilities};KVC_CUDA_ARCHITECTURE_NAMES=\"${names} compute_${newest}\"")
  target_include_directories(${target} SYSTEM PRIVATE ${include})
  set(KVC_HAS_CUDA ON PARENT_SCOPE)
endfunction()

function(kvc_add_kernels name)
  set(codes)
  list(SORT KVC_CUDA_ARCHITECTURES COMPARE NATURAL)
  foreach(architecture ${KVC_CUDA_ARCHITECTURES})
    list(APPEND codes -gencode arch=compute_${architecture},code=sm_${architecture})
    set(newest ${architecture})
  endforeach()
  list(APPEND codes -gencode arch=compute_${newest},code=compute_${newest})
  set(source ${CMAKE_SOURCE_DIR}/src)
  set(folder ${CMAKE_BINARY_DIR}/generated/${name})
  file(MAKE_DIRECTORY ${folder})
  file(GLOB kernels CONFIGURE_DEPENDS ${source}/cuda/*.cu)
  file(GLOB headers CONFIGURE_DEPENDS ${source}/cuda/*.cuh ${source}/cuda/*_params.h
       ${CMAKE_SOURCE_DIR}/include/*.h)
  set(images)
  set(incbin)
  set(table)
  foreach(kernel ${kernels})
    get_filename_component(file ${kernel} NAME_WE)
    set(image ${folder}/${file}.fatbin)
    # No fused multiply-add: results are byte-identical to the CPU's.
    add_custom_command(OUTPUT ${image}
      COMMAND ${KVC_NVCC} -fatbin -Xfatbin -compress-all -std=c++17 -O3 --fmad=false ${codes} ${ARGN}
              -I ${source} -I ${CMAKE_SOURCE_DIR}/include -o ${image} ${kernel}
      DEPENDS ${kernel} ${headers} ${source}/base/sincos.h ${source}/base/float_formats.h
              ${source}/base/host_device.h ${source}/cpu/hash.h ${source}/cpu/rope.h
      COMMENT "Compiling the kernels of ${file} for ${name}" VERBATIM)
    list(APPEND images ${image})
    string(APPEND incbin "__asm__(\".section .rodata\\n.balign 16\\nkvc__image_${file}:\\n\"\n"
      "        \".incbin \\\"${image}\\\"\\n.previous\\n\");\nextern const char kvc__image_${file}[];\n")
    string(APPEND table "\t{ \"${file}\", kvc__image_${file} },\n")
  endforeach()
  list(LENGTH images count)
  file(CONFIGURE OUTPUT ${folder}/images.c @ONLY CONTENT
"/* The compiled kernels; written by cmake/cuda.cmake. */
#include \"cuda/images.h\"

@incbin@
const struct kvc__image kvc__images[] = {
@table@};
const int kvc__image_count = @count@;
")
  set_source_files_properties(${folder}/images.c PROPERTIES OBJECT_DEPENDS "${images}")
  add_library(${name} OBJECT ${folder}/images.c)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
  target_include_directories(${name} PRIVATE ${source})
endfunction()
