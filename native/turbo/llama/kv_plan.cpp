#include "turbo/llama/kv_plan.h"

static thread_local const turbo_kv_plan * current_plan = nullptr;

turbo_kv_plan_scope::turbo_kv_plan_scope(const turbo_kv_plan * plan) : previous(current_plan) {
    current_plan = plan;
}

turbo_kv_plan_scope::~turbo_kv_plan_scope() {
    current_plan = previous;
}

ggml_type turbo_kv_layer_type_k(uint32_t il, ggml_type type_k) {
    if (current_plan == nullptr || il >= current_plan->type_k.size() || current_plan->type_k[il] == GGML_TYPE_COUNT) {
        return type_k;
    }
    return current_plan->type_k[il];
}
