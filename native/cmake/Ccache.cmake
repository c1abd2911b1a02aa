# Compile through ccache when it is there. CCACHE_BASEDIR makes the cache serve clones in other folders too: every
# path below the project is hashed relative to it.
find_program(TURBO_CCACHE ccache)
set(GGML_CCACHE OFF CACHE BOOL "" FORCE)
if (TURBO_CCACHE)
    set(launcher "${CMAKE_COMMAND};-E;env;CCACHE_BASEDIR=${TURBO_ROOT};CCACHE_NOHASHDIR=1;CCACHE_SLOPPINESS=time_macros,include_file_mtime,include_file_ctime;${TURBO_CCACHE}")
    set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()
