# Upstream's own measuring programs on top of our library, for comparisons (never installed): they run exactly its code.
function(turbo_upstream_tool name)
    add_executable(${name} ${ARGN})
    target_link_libraries(${name} PRIVATE llama_turbo Threads::Threads)
    target_link_options(${name} PRIVATE "-Wl,--allow-shlib-undefined") # the CUDA libraries may not be here, only where it runs
    target_include_directories(${name} PRIVATE "${TURBO_INCLUDE}" "${TURBO_UPSTREAM_TREE}/include" "${TURBO_UPSTREAM_TREE}/ggml/include"
        "${TURBO_UPSTREAM_TREE}/common" "${TURBO_UPSTREAM_TREE}/src" "${TURBO_UPSTREAM_TREE}/ggml/src" "${TURBO_UPSTREAM_TREE}/vendor")
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tools"
        BUILD_RPATH "$ORIGIN/../lib/${TURBO_LIB_KIND}" BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../lib/${TURBO_LIB_KIND};$ORIGIN")
endfunction()

file(GLOB bench "${TURBO_UPSTREAM_TREE}/tools/llama-bench/*.cpp")
turbo_upstream_tool(llama-bench ${bench})
file(GLOB perplexity "${TURBO_UPSTREAM_TREE}/tools/perplexity/*.cpp")
turbo_upstream_tool(llama-perplexity ${perplexity})
turbo_upstream_tool(test-backend-ops "${TURBO_UPSTREAM_TREE}/tests/test-backend-ops.cpp")
