# native/cdef/*.h (declarations) + native/cdef/module.c (includes) -> generated C -> pyllama_turbo/_ffi.abi3.so
file(GLOB cdef CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cdef/*.h")
set(prelude "${CMAKE_CURRENT_SOURCE_DIR}/cdef/module.c")
set(generated "${CMAKE_BINARY_DIR}/generated/_ffi.c")
add_custom_command(
    OUTPUT "${generated}"
    COMMAND "${Python_EXECUTABLE}" "${TURBO_ROOT}/scripts/make_ffi.py" --out "${generated}" --prelude "${prelude}" ${cdef}
    DEPENDS ${cdef} "${prelude}" "${TURBO_ROOT}/scripts/make_ffi.py"
    VERBATIM)
add_library(_ffi MODULE "${generated}")
target_include_directories(_ffi PRIVATE ${Python_INCLUDE_DIRS} "${CMAKE_CURRENT_SOURCE_DIR}"
    "${TURBO_UPSTREAM_TREE}/include" "${TURBO_UPSTREAM_TREE}/ggml/include")
target_link_libraries(_ffi PRIVATE llama_turbo)
target_link_options(_ffi PRIVATE "-Wl,--allow-shlib-undefined") # the CUDA libraries may not be here, only where it runs
if (TARGET llama_turbo_cpu)
    add_dependencies(_ffi llama_turbo_cpu)
endif()
# _native loads the chosen library first; the module finds it by its soname, and by this path when it is alone.
set_target_properties(_ffi PROPERTIES PREFIX "" OUTPUT_NAME "_ffi" SUFFIX ".abi3.so"
    INSTALL_RPATH "$ORIGIN/lib/${TURBO_LIB_KIND}" BUILD_WITH_INSTALL_RPATH ON)
install(TARGETS _ffi LIBRARY DESTINATION pyllama_turbo COMPONENT python)
