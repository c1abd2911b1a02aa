# Refuses GPUs that the CUDA kernels are not written for: they copy asynchronously and multiply on tensor cores as sm_80
# and later can.
function(turbo_check_cuda_architectures)
    foreach (architecture ${ARGN})
        if (architecture MATCHES "^[0-9]+" AND CMAKE_MATCH_0 LESS 80)
            message(FATAL_ERROR "pyllama_turbo's CUDA kernels need compute capability 8.0 (sm_80) or later, and sm_${CMAKE_MATCH_0} "
                                "was asked for. Build for the CPU on such a machine: BACKEND=cpu")
        endif()
    endforeach()
endfunction()

# Whether compute capability 9.0 is among the architectures: as 90, or in a list of all.
function(turbo_wants_sm90a out)
    set(${out} OFF PARENT_SCOPE)
    foreach (architecture ${ARGN})
        if (architecture MATCHES "^(90|90a)(-real|-virtual)?$" OR architecture MATCHES "^all")
            set(${out} ON PARENT_SCOPE)
        endif()
    endforeach()
endfunction()
