# Upstream's own measuring programs on our library's objects, for comparisons (never installed).
# Each is one source and its main(); linked statically, they measure exactly the code that libllama_turbo holds.
function(turbo_upstream_tool name)
    add_executable(${name} ${ARGN})
    target_link_libraries(${name} PRIVATE llama-common llama ggml ggml-base ggml-cpu Threads::Threads)
    target_include_directories(${name} PRIVATE "${TURBO_INCLUDE}" "${TURBO_UPSTREAM_TREE}/common" "${TURBO_UPSTREAM_TREE}/src"
        "${TURBO_UPSTREAM_TREE}/ggml/src")
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tools")
endfunction()

file(GLOB bench "${TURBO_UPSTREAM_TREE}/tools/llama-bench/*.cpp")
turbo_upstream_tool(llama-bench ${bench})
file(GLOB perplexity "${TURBO_UPSTREAM_TREE}/tools/perplexity/*.cpp")
turbo_upstream_tool(llama-perplexity ${perplexity})
turbo_upstream_tool(test-backend-ops "${TURBO_UPSTREAM_TREE}/tests/test-backend-ops.cpp")
