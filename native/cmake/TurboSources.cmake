# Our sources join upstream's own targets, so that a type, its codec and its kernels live where ggml looks for them.
set(TURBO_INCLUDE "${CMAKE_CURRENT_SOURCE_DIR}")
file(GLOB turbo_codec CONFIGURE_DEPENDS "${TURBO_INCLUDE}/turbo/cpu/*.c")
file(GLOB turbo_cpu CONFIGURE_DEPENDS "${TURBO_INCLUDE}/turbo/cpu/fattn*.cpp")
file(GLOB turbo_llama CONFIGURE_DEPENDS "${TURBO_INCLUDE}/turbo/llama/*.cpp")

target_sources(ggml-base PRIVATE ${turbo_codec})
target_include_directories(ggml-base PRIVATE "${TURBO_INCLUDE}")
target_sources(ggml-cpu PRIVATE ${turbo_cpu})
target_include_directories(ggml-cpu PRIVATE "${TURBO_INCLUDE}")
target_sources(llama PRIVATE ${turbo_llama})
target_include_directories(llama PRIVATE "${TURBO_INCLUDE}")
target_include_directories(llama-common PRIVATE "${TURBO_INCLUDE}")
set_source_files_properties(${turbo_llama} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
if (TURBO_USE_CUDA)
    file(GLOB turbo_cuda CONFIGURE_DEPENDS "${TURBO_INCLUDE}/turbo/cuda/*.cu")
    target_sources(ggml-cuda PRIVATE ${turbo_cuda})
    target_include_directories(ggml-cuda PRIVATE "${TURBO_INCLUDE}" "${TURBO_UPSTREAM_TREE}/ggml/src/ggml-cuda")
endif()

# A failed assertion in ggml's C files may become an exception on its way to the shim (shim/bounded.h): they need unwind tables.
foreach (target ggml-base ggml-cpu)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-fexceptions>)
endforeach()
