# cuBLAS: the toolkit's own, or the nvidia-cublas package of this Python (headers and libraries below nvidia/cu13).
# Sets TURBO_CUBLAS_FOUND and TURBO_CUBLAS_REASON, and the cache variables FindCUDAToolkit reads.
set(TURBO_CUBLAS_FOUND FALSE)
set(links "${CMAKE_BINARY_DIR}/cublas")
find_package(CUDAToolkit QUIET)
if (TARGET CUDA::cublas AND NOT EXISTS "${links}")
    set(TURBO_CUBLAS_FOUND TRUE) # the toolkit has it; what the package gave an earlier run is found again below
    return()
endif()
execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import importlib.util as u; s = u.find_spec('nvidia'); print(list(s.submodule_search_locations)[0] if s else '')"
    OUTPUT_VARIABLE nvidia OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(GLOB cublas "${nvidia}/cu1*/lib/libcublas.so.1*")
if (NOT nvidia OR NOT cublas)
    set(TURBO_CUBLAS_REASON "not in the CUDA toolkit; pip install --no-deps nvidia-cublas==13.1.0.3 brings it")
    return()
endif()
list(GET cublas 0 cublas)
get_filename_component(lib "${cublas}" DIRECTORY)
get_filename_component(home "${lib}" DIRECTORY)
string(REPLACE "libcublas.so" "libcublasLt.so" cublaslt "${cublas}")
# The linker wants names without a version.
file(MAKE_DIRECTORY "${links}")
file(CREATE_LINK "${cublas}" "${links}/libcublas.so" SYMBOLIC)
file(CREATE_LINK "${cublaslt}" "${links}/libcublasLt.so" SYMBOLIC)
set(CUDA_cublas_LIBRARY "${links}/libcublas.so" CACHE FILEPATH "" FORCE)
set(CUDA_cublasLt_LIBRARY "${links}/libcublasLt.so" CACHE FILEPATH "" FORCE)
# Only cuBLAS's headers: a newer CUDA runtime in the same folder would shadow those of nvcc.
file(MAKE_DIRECTORY "${links}/include")
file(GLOB headers "${home}/include/cublas*.h")
file(COPY ${headers} DESTINATION "${links}/include")
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -I${links}/include")
set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -I${links}/include")
set(TURBO_CUBLAS_FOUND TRUE)
