# The shared library, one a kind: libllama_turbo.so in lib/cpu or lib/cuda. Exported are the shim's turbo_* functions and
# llama.h; everything else stays hidden, so a second ggml in the process does no harm. A CUDA build makes the CPU library
# too: a machine without a driver or the CUDA libraries falls back to it.
file(GLOB shim CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/shim/*.cpp")
file(GLOB_RECURSE native_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/turbo/*" "${CMAKE_CURRENT_SOURCE_DIR}/shim/*")
set(architectures ${CMAKE_CUDA_ARCHITECTURES})
if (architectures STREQUAL "native")
    set(architectures ${CMAKE_CUDA_ARCHITECTURES_NATIVE})
endif()
list(JOIN architectures " " TURBO_ARCH_TEXT)

# The shim compiled for one kind; the caller links the archives.
function(turbo_add_library target kind)
    # One digest of pin, patches and all our native sources, renewed whenever one of them changes.
    set(header "${CMAKE_BINARY_DIR}/generated/${kind}/turbo_build.h")
    set(arch_text "")
    if (kind STREQUAL "cuda")
        set(arch_text "${TURBO_ARCH_TEXT}")
    endif()
    add_custom_command(
        OUTPUT "${header}"
        COMMAND "${Python_EXECUTABLE}" "${TURBO_ROOT}/scripts/build_header.py" --out "${header}" --native "${CMAKE_CURRENT_SOURCE_DIR}"
                --tree-digest "${TURBO_TREE_DIGEST}" --commit "${TURBO_UPSTREAM_COMMIT}" --backend "${kind}"
                --cpu-features "${TURBO_CPU_FEATURES}" --cuda-architectures "${arch_text}"
        DEPENDS ${native_sources} "${TURBO_ROOT}/scripts/build_header.py"
        VERBATIM)
    add_library(${target} SHARED ${shim} "${header}")
    target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" "${CMAKE_BINARY_DIR}/generated/${kind}"
        "${TURBO_UPSTREAM_TREE}/include" "${TURBO_UPSTREAM_TREE}/ggml/include" "${TURBO_UPSTREAM_TREE}/src"
        "${TURBO_UPSTREAM_TREE}/common" "${TURBO_UPSTREAM_TREE}/ggml/src" "${TURBO_UPSTREAM_TREE}/vendor")
    target_compile_options(${target} PRIVATE -fvisibility=hidden -fvisibility-inlines-hidden -Wall -Wextra)
    target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
    target_link_options(${target} PRIVATE "-Wl,--no-undefined")
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME llama_turbo
        LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib/${kind}" INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
    install(TARGETS ${target} LIBRARY DESTINATION "pyllama_turbo/lib/${kind}" COMPONENT python)
endfunction()

function(turbo_hide_symbols target)
    set(exports "${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map")
    target_link_options(${target} PRIVATE "-Wl,--version-script=${exports}")
    set_target_properties(${target} PROPERTIES LINK_DEPENDS "${exports}")
endfunction()

# "-Wl,--whole-archive,..." for targets, by file name: CMake's own WHOLE_ARCHIVE feature refuses, before 3.30, a target that
# is also linked plainly by others.
function(turbo_whole_archive out)
    foreach (archive ${ARGN})
        list(APPEND files "$<TARGET_FILE:${archive}>")
    endforeach()
    list(JOIN files "," files)
    set(${out} "-Wl,--whole-archive,${files},--no-whole-archive" PARENT_SCOPE)
endfunction()

turbo_add_library(llama_turbo ${TURBO_LIB_KIND})
if (TURBO_UPSTREAM_TOOLS)
    # Upstream's programs link to this library too, so it keeps and shows everything.
    set(archives llama llama-common ggml ggml-base ggml-cpu)
    if (TURBO_USE_CUDA)
        list(APPEND archives ggml-cuda)
    endif()
    turbo_whole_archive(whole ${archives})
    target_link_libraries(llama_turbo PRIVATE "${whole}" ${archives})
else()
    # llama.h's functions are reached from Python only, so the linker must be told to keep them.
    turbo_whole_archive(whole llama)
    target_link_libraries(llama_turbo PRIVATE "${whole}" llama llama-common ggml ggml-base ggml-cpu)
    turbo_hide_symbols(llama_turbo)
endif()

if (TURBO_USE_CUDA)
    target_compile_definitions(llama_turbo PRIVATE TURBO_WITH_CUDA)
    if (TURBO_CUDA_GRAPHS)
        target_compile_definitions(llama_turbo PRIVATE GGML_CUDA_USE_GRAPHS)
    endif()
    set(rpath "$ORIGIN;$ORIGIN/../../../nvidia/cu13/lib;$ORIGIN/../../../nvidia/cublas/lib;$ORIGIN/../../../nvidia/cuda_runtime/lib")
    foreach (folder ${CUDAToolkit_LIBRARY_DIR})
        list(APPEND rpath "${folder}")
    endforeach()
    set_target_properties(llama_turbo PROPERTIES INSTALL_RPATH "${rpath}")

    # The CPU library from the same archives. Only the list of backends differs: it is compiled again without CUDA.
    find_package(OpenMP REQUIRED COMPONENTS CXX)
    add_library(turbo-cpu-registry STATIC "${TURBO_UPSTREAM_TREE}/ggml/src/ggml-backend-reg.cpp"
        "${TURBO_UPSTREAM_TREE}/ggml/src/ggml-backend-dl.cpp")
    target_compile_definitions(turbo-cpu-registry PRIVATE GGML_USE_CPU)
    target_include_directories(turbo-cpu-registry PRIVATE "${TURBO_UPSTREAM_TREE}/ggml/include" "${TURBO_UPSTREAM_TREE}/ggml/src")
    turbo_add_library(llama_turbo_cpu cpu)
    turbo_hide_symbols(llama_turbo_cpu)
    turbo_whole_archive(whole llama)
    set(files "")
    foreach (archive llama-common llama-common-base cpp-httplib turbo-cpu-registry ggml-cpu ggml-base)
        list(APPEND files "$<TARGET_FILE:${archive}>")
    endforeach()
    target_link_libraries(llama_turbo_cpu PRIVATE "${whole}" -Wl,--start-group ${files} -Wl,--end-group OpenMP::OpenMP_CXX m)
    add_dependencies(llama_turbo_cpu llama llama-common llama-common-base cpp-httplib turbo-cpu-registry ggml-cpu ggml-base)
endif()

install(FILES "${TURBO_UPSTREAM_TREE}/LICENSE" DESTINATION "pyllama_turbo/licenses" COMPONENT python RENAME LICENSE.llama.cpp)
install(DIRECTORY "${TURBO_UPSTREAM_TREE}/licenses/" DESTINATION "pyllama_turbo/licenses" COMPONENT python FILES_MATCHING PATTERN "LICENSE*")
