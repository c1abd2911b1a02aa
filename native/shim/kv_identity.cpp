// The settings of a cache that its bytes depend on and do not tell.
#include "turbo_state.h"

#include "handles.h"
#include "kv_access.h"

#include "llama-context.h"
#include "turbo/llama/kv_caches.h"

void turbo_kv_access::identify(const llama_kv_cache & cache, turbo_kv_identity * out) {
    out->n_stream = (int32_t) cache.n_stream;
    out->rotated_k = cache.attn_rot_k;
    out->rotated_v = cache.attn_rot_v;
    out->transposed_v = cache.v_trans;
}

int32_t turbo_kv_get_identity(const turbo_context * ctx, turbo_kv_identity * out) {
    return turbo_guard("kv_identity", [&] {
        *out = turbo_kv_identity{};
        const llama_cparams & cparams = ctx->ctx->get_cparams();
        out->rope_freq_base = cparams.rope_freq_base;
        out->rope_freq_scale = cparams.rope_freq_scale;
        out->yarn_ext_factor = cparams.yarn_ext_factor;
        out->yarn_attn_factor = cparams.yarn_attn_factor;
        out->yarn_beta_fast = cparams.yarn_beta_fast;
        out->yarn_beta_slow = cparams.yarn_beta_slow;
        out->yarn_orig_ctx = (int32_t) cparams.n_ctx_orig_yarn;
        const auto caches = turbo_kv_caches(llama_get_memory(ctx->ctx));
        if (!caches.empty()) {
            turbo_kv_access::identify(*caches.front().cache, out);  // the parts of one context agree
        }
        return (int32_t) TURBO_OK;
    });
}
