# The one shared library. Exported are the shim's turbo_* functions and llama.h; everything else stays hidden, so a
# second ggml in the process does no harm.
file(GLOB shim CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/shim/*.cpp")

# One digest of pin, patches and all our native sources, renewed whenever one of them changes.
file(GLOB_RECURSE native_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/turbo/*" "${CMAKE_CURRENT_SOURCE_DIR}/shim/*")
set(build_header "${CMAKE_BINARY_DIR}/generated/turbo_build.h")
list(JOIN CMAKE_CUDA_ARCHITECTURES " " arch_text)
add_custom_command(
    OUTPUT "${build_header}"
    COMMAND "${Python_EXECUTABLE}" "${TURBO_ROOT}/scripts/build_header.py" --out "${build_header}" --native "${CMAKE_CURRENT_SOURCE_DIR}"
            --tree-digest "${TURBO_TREE_DIGEST}" --commit "${TURBO_UPSTREAM_COMMIT}" --backend "${TURBO_LIB_KIND}"
            --cpu-features "${TURBO_CPU_FEATURES}" --cuda-architectures "${arch_text}"
    DEPENDS ${native_sources} "${TURBO_ROOT}/scripts/build_header.py"
    VERBATIM)

# Link archives whole. By file name and linker flag: CMake's own WHOLE_ARCHIVE feature refuses, before 3.30, a target that
# is also linked plainly by others.
function(turbo_keep_whole target)
    foreach (archive ${ARGN})
        list(APPEND files "$<TARGET_FILE:${archive}>")
    endforeach()
    list(JOIN files "," files)
    target_link_libraries(${target} PRIVATE "-Wl,--whole-archive,${files},--no-whole-archive" ${ARGN})
endfunction()

add_library(llama_turbo SHARED ${shim} "${build_header}")
target_include_directories(llama_turbo PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" "${CMAKE_BINARY_DIR}/generated"
    "${TURBO_UPSTREAM_TREE}/src" "${TURBO_UPSTREAM_TREE}/common" "${TURBO_UPSTREAM_TREE}/ggml/src")
target_compile_options(llama_turbo PRIVATE -fvisibility=hidden -fvisibility-inlines-hidden -Wall -Wextra)
target_link_libraries(llama_turbo PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(llama_turbo PRIVATE "-Wl,--no-undefined")
set_target_properties(llama_turbo PROPERTIES LINKER_LANGUAGE CXX)
if (TURBO_UPSTREAM_TOOLS)
    # Upstream's programs link to this library too, so it keeps and shows everything.
    set(archives llama llama-common ggml ggml-base ggml-cpu)
    if (TURBO_USE_CUDA)
        list(APPEND archives ggml-cuda)
    endif()
    turbo_keep_whole(llama_turbo ${archives})
else()
    set(exports "${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map")
    # llama.h's functions are reached from Python only, so the linker must be told to keep them.
    turbo_keep_whole(llama_turbo llama)
    target_link_libraries(llama_turbo PRIVATE llama-common ggml ggml-base ggml-cpu)
    target_link_options(llama_turbo PRIVATE "-Wl,--version-script=${exports}")
    set_target_properties(llama_turbo PROPERTIES LINK_DEPENDS "${exports}")
endif()
set(rpath "$ORIGIN")
if (TURBO_USE_CUDA)
    if (TURBO_CUDA_GRAPHS)
        target_compile_definitions(llama_turbo PRIVATE GGML_CUDA_USE_GRAPHS)
    endif()
    set(rpath "$ORIGIN;$ORIGIN/../../../nvidia/cu13/lib;$ORIGIN/../../../nvidia/cublas/lib;$ORIGIN/../../../nvidia/cuda_runtime/lib")
    foreach (folder ${CUDAToolkit_LIBRARY_DIR})
        list(APPEND rpath "${folder}")
    endforeach()
endif()
set_target_properties(llama_turbo PROPERTIES INSTALL_RPATH "${rpath}" BUILD_WITH_INSTALL_RPATH ON)

install(TARGETS llama_turbo LIBRARY DESTINATION "pyllama_turbo/lib/${TURBO_LIB_KIND}" COMPONENT python)
install(FILES "${TURBO_UPSTREAM_TREE}/LICENSE" DESTINATION "pyllama_turbo/licenses" COMPONENT python RENAME LICENSE.llama.cpp)
install(DIRECTORY "${TURBO_UPSTREAM_TREE}/licenses/" DESTINATION "pyllama_turbo/licenses" COMPONENT python FILES_MATCHING PATTERN "LICENSE*")
