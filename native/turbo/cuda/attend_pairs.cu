// Attention kernels of usual pairs of formats, up to eight columns: heads of 128, and larger ones in trellis codes,
// which keep many registers busy.

#include "attend_launch.cuh"

namespace turbo_cuda {

using launch = cudaError_t(const attend_params &p, const attend_args &args, int slices, cudaStream_t stream);

template <int k_format, int v_format = k_format>
static cudaError_t launch_128(const attend_params &p, const attend_args &args, int slices, cudaStream_t stream) {
    // beside larger tiles or tables there is no room for more; values in q8_0 take 16 tokens at a time
    constexpr int many = k_format < KV_TURBO4_TCQ ? 4 : v_format != KV_Q8_0 ? 2 : 1;
    if constexpr (own_look_up(k_format, v_format, 128, 2) == 3) {
        if (slices == 2) {
            return launch_shape<attend_shape<1, 1, 2, 32, family_of(k_format, v_format)>>(p, args, stream);
        }
    }
    return launch_slices<family_of(k_format, v_format), 1, 1, 1, many, 32>(p, args, slices, stream);
}

template <int format, int blocks>
static cudaError_t launch_large(const attend_params &p, const attend_args &args, int slices, cudaStream_t stream) {
    return launch_slices<family_of(format, format), blocks, 1, 1, 2, 32>(p, args, slices, stream);
}

template <int format> static launch *find_trellis(int head_dim) {
    switch (head_dim) {
        case 128: return launch_128<format>;
        case 256: return launch_large<format, 2>;
        case 512: return launch_large<format, 4>;
        default: return nullptr;
    }
}

// Do heads of q8_0 begin where attend_q8.cuh needs them?
static bool in_place(const kv_tensor &x) {
    const uint64_t places = reinterpret_cast<uintptr_t>(x.data) | x.stride_head | x.stride_stream;
    return x.format != KV_Q8_0 || (places % 8 == 0 && x.stride_token % 16 == 0);
}

// The launch of a pair's own instance, or null.
static launch *find(const attend_args &args) {
    if (!in_place(args.k) || !in_place(args.v)) {
        return nullptr;
    }
    const int pair = family_of(args.k.format, args.v.format);
    switch (pair) {
        case family_of(KV_TURBO2_TCQ, KV_TURBO2_TCQ): return find_trellis<KV_TURBO2_TCQ>(args.head_dim);
        case family_of(KV_TURBO3_TCQ, KV_TURBO3_TCQ): return find_trellis<KV_TURBO3_TCQ>(args.head_dim);
        case family_of(KV_TURBO4_TCQ, KV_TURBO4_TCQ): return find_trellis<KV_TURBO4_TCQ>(args.head_dim);
    }
    switch (args.head_dim == 128 ? pair : -1) {
        case family_of(KV_TURBO2, KV_TURBO2): return launch_128<KV_TURBO2>;
        case family_of(KV_TURBO3, KV_TURBO3): return launch_128<KV_TURBO3>;
        case family_of(KV_TURBO4, KV_TURBO4): return launch_128<KV_TURBO4>;
        case family_of(KV_Q8_0, KV_Q8_0): return launch_128<KV_Q8_0>;
        case family_of(KV_Q8_0, KV_TURBO3): return launch_128<KV_Q8_0, KV_TURBO3>;
        case family_of(KV_TURBO4_TCQ, KV_TURBO3_TCQ): return launch_128<KV_TURBO4_TCQ, KV_TURBO3_TCQ>;
        default: return nullptr;
    }
}

bool attend_has_pair(const attend_args &args) {
    return find(args) != nullptr;
}

cudaError_t attend_pairs(const attend_params &p, const attend_args &args, const attend_plan &plan,
                         cudaStream_t stream) {
    launch *const fitting = find(args);
    return fitting == nullptr ? cudaErrorInvalidValue : fitting(p, args, plan.slices, stream);
}

} // namespace turbo_cuda
