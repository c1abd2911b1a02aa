# AddressSanitizer and UndefinedBehaviorSanitizer for what is ours: the codecs, CPU attention, cache logic and the shim.
# Upstream's objects stay as they are (and come from ccache), so such a build takes little longer than an ordinary one.
# `make sanitize` runs the native tests below, then the Python ones on the sanitized library.
set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1)

# Sources that joined upstream's targets take the flags one by one; upstream's own sources there take none.
set_property(SOURCE ${turbo_codec} TARGET_DIRECTORY ggml-base APPEND PROPERTY COMPILE_OPTIONS ${sanitize})
set_property(SOURCE ${turbo_cpu} TARGET_DIRECTORY ggml-cpu APPEND PROPERTY COMPILE_OPTIONS ${sanitize})
set_property(SOURCE ${turbo_llama} TARGET_DIRECTORY llama APPEND PROPERTY COMPILE_OPTIONS ${sanitize})
target_compile_options(llama_turbo PRIVATE ${sanitize})
target_link_options(llama_turbo PRIVATE -fsanitize=address,undefined)

function(turbo_native_test name)
    add_executable(${name} ${ARGN})
    target_include_directories(${name} PRIVATE "${TURBO_INCLUDE}" "${TURBO_UPSTREAM_TREE}/ggml/include"
        "${TURBO_UPSTREAM_TREE}/ggml/src" "${TURBO_UPSTREAM_TREE}/ggml/src/ggml-cpu")
    target_compile_options(${name} PRIVATE ${sanitize})
    target_link_options(${name} PRIVATE -fsanitize=address,undefined)
    target_link_libraries(${name} PRIVATE Threads::Threads m)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
endfunction()

turbo_native_test(test_codecs "${CMAKE_CURRENT_SOURCE_DIR}/tests/test_codecs.c" ${turbo_codec})
turbo_native_test(test_fattn "${CMAKE_CURRENT_SOURCE_DIR}/tests/test_fattn.cpp" "${CMAKE_CURRENT_SOURCE_DIR}/tests/fattn_case.cpp" ${turbo_cpu})
target_link_libraries(test_fattn PRIVATE ggml-base)
turbo_native_test(test_product_groups "${CMAKE_CURRENT_SOURCE_DIR}/tests/test_product_groups.cpp")
target_link_libraries(test_product_groups PRIVATE ggml-base)
turbo_native_test(test_kv_mask "${CMAKE_CURRENT_SOURCE_DIR}/tests/test_kv_mask.cpp")
target_include_directories(test_kv_mask PRIVATE "${TURBO_UPSTREAM_TREE}/src" "${TURBO_UPSTREAM_TREE}/include")
