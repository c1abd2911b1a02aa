// What turbo/cuda/product_groups.h and rope_chains.h find in graphs of one token or a few, without a GPU: layers as
// llama.cpp builds them, with and without what must keep them from being joined, and thousands of random variations of
// them.
//
//   test_product_groups [SEEDS]     default 3000

#include "turbo/cuda/product_groups.h"
#include "turbo/cuda/rope_chains.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

using namespace turbo_cuda;

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, where.c_str());                        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static std::string where;

// What varies in a layer.
struct variation {
    bool experts = false, merged = false, biased = false, head_norms = false, gated = true, divided = true;
    bool f16_keys = false; // written by a SET_ROWS into f16
    bool scaled = false;   // every expert's product
    int tokens = 1, used = 4;
    ggml_type type = GGML_TYPE_Q4_0, v_type = GGML_TYPE_Q4_0;
    ggml_glu_op activation = GGML_GLU_OP_SWIGLU;
};

struct layer_graph {
    static constexpr int embedding = 256, hidden = 256, heads = 4, kv_heads = 2, head_dim = 64, n_experts = 8;
    variation v;
    ggml_context *ctx;
    ggml_cgraph *graph;
    std::map<std::string, ggml_tensor *> named;

    explicit layer_graph(const variation &variation_) : v(variation_) {
        ctx = ggml_init({ggml_tensor_overhead() * 512 + ggml_graph_overhead(), nullptr, true});
        graph = ggml_new_graph(ctx);
        build();
    }
    ~layer_graph() { ggml_free(ctx); }
    layer_graph(const layer_graph &) = delete;

    ggml_tensor *matrix(ggml_type type, int64_t in, int64_t out, int64_t experts = 1) {
        return ggml_new_tensor_3d(ctx, type, in, out, experts);
    }
    ggml_tensor *vector(int64_t n) { return ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n); }
    ggml_tensor *name(const char *key, ggml_tensor *t) { return named[key] = t; }
    ggml_tensor *normed(ggml_tensor *x, const char *key) {
        return name(key, ggml_mul(ctx, ggml_rms_norm(ctx, x, 1e-6f), vector(x->ne[0])));
    }
    ggml_tensor *product(ggml_tensor *x, ggml_type type, int64_t out, const char *key) {
        ggml_tensor *y = name(key, ggml_mul_mat(ctx, matrix(type, x->ne[0], out), x));
        return v.biased ? ggml_add(ctx, y, vector(out)) : y;
    }
    ggml_tensor *turned(ggml_tensor *x, ggml_tensor *positions, int n, const char *key) {
        x = ggml_reshape_3d(ctx, x, head_dim, n, v.tokens);
        if (v.head_norms) {
            x = ggml_mul(ctx, ggml_rms_norm(ctx, x, 1e-6f), vector(head_dim));
        }
        return name(key, ggml_rope_ext(ctx, x, positions, nullptr, head_dim, GGML_ROPE_TYPE_NEOX, 4096, 1e4f, 1.0f,
                                       0.0f, 1.0f, 32.0f, 1.0f));
    }

    ggml_tensor *dense(ggml_tensor *x) {
        ggml_tensor *up = name("up", ggml_mul_mat(ctx, matrix(v.type, embedding, hidden), x));
        ggml_tensor *gate = name("gate", ggml_mul_mat(ctx, matrix(v.type, embedding, hidden), x));
        ggml_tensor *y =
            v.gated ? ggml_glu_split(ctx, gate, up, v.activation) : ggml_mul(ctx, ggml_tanh(ctx, gate), up);
        return product(name("activated", y), v.type, embedding, "down");
    }
    ggml_tensor *mixed(ggml_tensor *x) {
        ggml_tensor *logits = name("logits", ggml_mul_mat(ctx, matrix(GGML_TYPE_F32, embedding, n_experts), x));
        ggml_tensor *probs = ggml_soft_max(ctx, logits);
        ggml_tensor *ids = name("ids", ggml_argsort_top_k(ctx, probs, v.used));
        ggml_tensor *weights = ggml_get_rows(ctx, ggml_reshape_3d(ctx, probs, 1, n_experts, v.tokens), ids);
        if (v.divided) {
            weights = ggml_reshape_2d(ctx, weights, v.used, v.tokens);
            weights = ggml_div(ctx, weights, ggml_clamp(ctx, ggml_sum_rows(ctx, weights), 6e-5f, INFINITY));
            weights = ggml_reshape_3d(ctx, weights, 1, v.used, v.tokens);
        }
        ggml_build_forward_expand(graph, weights);
        x = ggml_reshape_3d(ctx, x, embedding, 1, v.tokens);
        ggml_tensor *up, *gate;
        if (v.merged) {
            ggml_tensor *both =
                name("up", ggml_mul_mat_id(ctx, matrix(v.type, embedding, 2 * hidden, n_experts), x, ids));
            const auto half = [&](size_t at) {
                return ggml_view_3d(ctx, both, hidden, v.used, v.tokens, both->nb[1], both->nb[2], at * both->nb[0]);
            };
            gate = half(0), up = half(hidden);
        } else {
            up = name("up", ggml_mul_mat_id(ctx, matrix(v.type, embedding, hidden, n_experts), x, ids));
            gate = name("gate", ggml_mul_mat_id(ctx, matrix(v.type, embedding, hidden, n_experts), x, ids));
        }
        ggml_tensor *y = name("activated", ggml_glu_split(ctx, gate, up, v.activation));
        y = name("down", ggml_mul_mat_id(ctx, matrix(v.type, hidden, embedding, n_experts), y, ids));
        if (v.scaled) {
            ggml_tensor *scale = ggml_reshape_3d(ctx, vector(n_experts), 1, n_experts, 1);
            scale = ggml_get_rows(ctx, ggml_repeat_4d(ctx, scale, 1, n_experts, v.tokens, 1), ids);
            y = name("scaled", ggml_mul(ctx, y, scale));
        }
        y = name("weighted", ggml_mul(ctx, y, weights));
        ggml_build_forward_expand(graph, y);
        std::vector<ggml_tensor *> of_expert;
        for (int e = 0; e < v.used; e++) {
            of_expert.push_back(ggml_view_2d(ctx, y, embedding, v.tokens, y->nb[2], e * y->nb[1]));
            ggml_build_forward_expand(graph, of_expert[e]);
        }
        ggml_tensor *sum = of_expert[0];
        for (int e = 1; e < v.used; e++) {
            sum = ggml_add(ctx, sum, of_expert[e]);
            ggml_build_forward_expand(graph, sum);
        }
        return sum;
    }

    void build() {
        ggml_tensor *x = name("x", ggml_new_tensor_2d(ctx, GGML_TYPE_F32, embedding, v.tokens)),
                    *positions = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, v.tokens);
        x = ggml_scale(ctx, x, 2.0f); // computed, as a layer's input is
        ggml_tensor *n = normed(x, "attn_norm");
        ggml_tensor *q = turned(product(n, v.type, heads * head_dim, "q"), positions, heads, "q rope");
        ggml_tensor *k = turned(product(n, v.type, kv_heads * head_dim, "k"), positions, kv_heads, "k rope");
        ggml_tensor *value = product(n, v.v_type, kv_heads * head_dim, "v");
        q = ggml_scale(ctx, q, 0.5f); // as a balanced model's queries
        ggml_build_forward_expand(graph, q);
        ggml_build_forward_expand(graph, value);
        ggml_build_forward_expand(graph, k);
        if (v.f16_keys) {
            ggml_tensor *cache = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, kv_heads * head_dim, 64),
                        *rows = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, v.tokens);
            ggml_tensor *flat = ggml_reshape_2d(ctx, k, kv_heads * head_dim, v.tokens);
            ggml_build_forward_expand(graph, ggml_set_rows(ctx, cache, flat, rows));
        }
        const auto heads_first = [&](ggml_tensor *t, int n_heads) {
            return ggml_permute(ctx, ggml_reshape_3d(ctx, t, head_dim, n_heads, v.tokens), 0, 2, 1, 3);
        };
        ggml_tensor *a = ggml_flash_attn_ext(ctx, heads_first(q, heads), heads_first(k, kv_heads),
                                             heads_first(value, kv_heads), nullptr, 0.1f, 0.0f, 0.0f);
        a = ggml_reshape_2d(ctx, a, heads * head_dim, v.tokens);
        a = ggml_add(ctx, name("o", ggml_mul_mat(ctx, matrix(v.type, heads * head_dim, embedding), a)), x);
        ggml_tensor *f = normed(name("middle", a), "ffn_norm");
        f = v.experts ? mixed(f) : dense(f);
        ggml_build_forward_expand(graph, name("end", ggml_add(ctx, f, a)));
    }

    int at(const char *key) const {
        const ggml_tensor *t = named.at(key);
        return (int) (std::find(graph->nodes, graph->nodes + graph->n_nodes, t) - graph->nodes);
    }
    void order() {
        for (int i = 0; i < graph->n_nodes; i++) {
            if (graph->nodes[i]->op == GGML_OP_MUL && is_vectors(graph->nodes[i])) {
                gather_products(graph, i);
            }
        }
        for (int i = 0; i < graph->n_nodes; i++) {
            rope_chain queries, keys;
            if (match_chain(graph, i, queries) && find_keys(graph, queries, 6, keys)) {
                bring_together(graph, queries, keys);
                break;
            }
        }
    }
    product_group group_at(int i) const {
        product_group group;
        return match(graph, i, group) ? group : product_group();
    }
};

// Every node comes after all that it reads, and none was lost.
static void expect_order(const layer_graph &g, const std::set<const ggml_tensor *> &before) {
    std::set<const ggml_tensor *> seen;
    for (int i = 0; i < g.graph->n_nodes; i++) {
        const ggml_tensor *node = g.graph->nodes[i];
        for (const ggml_tensor *src : node->src) {
            EXPECT(src == nullptr || before.count(src) == 0 || seen.count(src) != 0);
        }
        EXPECT(node->view_src == nullptr || before.count(node->view_src) == 0 || seen.count(node->view_src) != 0);
        seen.insert(node);
    }
    EXPECT(seen == before);
}

// What a group does not write is read by none but its own nodes, and what it reads is there before it begins.
static void expect_private(const layer_graph &g, int first, const product_group &group) {
    std::set<const ggml_tensor *> own, outputs;
    for (int i = first; i <= group.last; i++) {
        own.insert(g.graph->nodes[i]);
    }
    for (const ggml_tensor *t : outputs_of(group)) {
        EXPECT(own.count(t) != 0);
        outputs.insert(base_of(t));
    }
    for (int i = group.last + 1; i < g.graph->n_nodes; i++) {
        for (const ggml_tensor *src : g.graph->nodes[i]->src) {
            EXPECT(src == nullptr || own.count(base_of(src)) == 0 || outputs.count(base_of(src)) != 0);
        }
    }
    for (const ggml_tensor *t : own) {
        EXPECT((t->flags & GGML_TENSOR_FLAG_OUTPUT) == 0 || outputs.count(base_of(t)) != 0);
    }
    for (const ggml_tensor *t : inputs_of(group)) {
        EXPECT(own.count(base_of(t)) == 0);
    }
}

static std::set<const ggml_tensor *> nodes_of(const layer_graph &g) {
    return {g.graph->nodes, g.graph->nodes + g.graph->n_nodes};
}

// All groups in the order in which they would run: how many launches of each kind.
static std::map<std::string, int> walk(const layer_graph &g) {
    std::map<std::string, int> kinds;
    for (int i = 0; i < g.graph->n_nodes; i++) {
        const product_group group = g.group_at(i);
        if (group.n > 0) {
            expect_private(g, i, group);
            kinds[group.mix != nullptr ? "mix" : group.gated != GATE_NONE ? "gated" : "plain"]++;
            kinds["matrices"] += group.n, kinds["sums"] += group.matrix[0].add != nullptr;
            kinds["scales"] += group.scale != nullptr;
            kinds["norms"] += group.norm != nullptr, kinds["kept norms"] += group.normed != nullptr;
            i = group.last;
        }
    }
    return kinds;
}

static void expect_kinds(const variation &v, const std::map<std::string, int> &expected, bool ropes) {
    layer_graph g(v);
    const auto before = nodes_of(g);
    g.order();
    expect_order(g, before);
    std::map<std::string, int> found = walk(g);
    for (const auto &[kind, n] : expected) {
        if (found[kind] != n) {
            fprintf(stderr, "%s: %d %s, %d expected\n", where.c_str(), found[kind], kind.c_str(), n);
            exit(1);
        }
    }
    bool together = false;
    for (int i = 0; i < g.graph->n_nodes; i++) {
        rope_chain queries, keys;
        together |= match_chain(g.graph, i, queries) && queries.rope == g.named["q rope"] &&
                    find_keys(g.graph, queries, 1, keys) && keys.rope == g.named["k rope"];
    }
    EXPECT(together == ropes);
}

static void known_layers() {
    variation v;
    where = "dense";
    expect_kinds(v, {{"gated", 1}, {"plain", 3}, {"matrices", 6}, {"sums", 2}, {"norms", 2}, {"kept norms", 0}}, true);
    where = "dense, norms of heads, keys of f16";
    v.head_norms = v.f16_keys = true;
    expect_kinds(v, {{"gated", 1}, {"plain", 3}, {"norms", 2}}, false);
    where = "dense, norms of heads";
    v.f16_keys = false;
    expect_kinds(v, {{"gated", 1}, {"plain", 3}, {"norms", 2}}, true);
    where = "biases";
    v.biased = true;
    expect_kinds(v, {{"gated", 1}, {"plain", 3}, {"matrices", 6}, {"sums", 3}}, true);
    where = "values of another type";
    v = {}, v.v_type = GGML_TYPE_Q6_K;
    expect_kinds(v, {{"gated", 1}, {"plain", 4}, {"matrices", 6}, {"norms", 2}, {"kept norms", 1}}, true);
    where = "a type that is not read";
    v = {}, v.type = v.v_type = GGML_TYPE_IQ2_XS;
    expect_kinds(v, {{"gated", 0}, {"plain", 0}, {"mix", 0}}, false); // the keys' product stands between
    where = "no gate that is known";
    v = {}, v.gated = false;
    expect_kinds(v, {{"gated", 0}, {"plain", 4}, {"matrices", 7}}, true);
    v = {}, v.activation = GGML_GLU_OP_GEGLU_ERF;
    expect_kinds(v, {{"gated", 0}, {"plain", 4}}, true);
    where = "experts";
    v = {}, v.experts = true;
    expect_kinds(v, {{"gated", 1}, {"mix", 1}, {"plain", 3}, {"sums", 2}, {"norms", 2}, {"kept norms", 1}}, true);
    where = "experts, each one's product scaled";
    v.scaled = true;
    expect_kinds(v, {{"gated", 1}, {"mix", 1}, {"scales", 1}, {"plain", 3}, {"sums", 2}}, true);
    v.scaled = false;
    where = "experts, up and gate in one";
    v.merged = true;
    expect_kinds(v, {{"gated", 1}, {"mix", 1}, {"plain", 3}}, true);
    where = "more experts than a block has warps";
    v.merged = false, v.used = 1;
    expect_kinds(v, {{"gated", 1}, {"mix", 0}}, true);
    where = "a short batch"; // gates only of experts
    for (int tokens : {2, max_vectors}) {
        v = {}, v.tokens = tokens;
        expect_kinds(v, {{"gated", 0}, {"plain", 4}, {"matrices", 7}, {"sums", 2}, {"norms", 2}}, true);
        v.biased = true; // a bias is not like the product it is added to, and stands between queries and keys
        expect_kinds(v, {{"gated", 0}, {"plain", 4}, {"matrices", 7}, {"sums", 1}, {"norms", 2}}, false);
        v.biased = false, v.experts = true;
        expect_kinds(v, {{"gated", 1}, {"mix", 1}, {"plain", 3}, {"sums", 2}, {"norms", 2}, {"kept norms", 1}}, true);
        v.merged = v.scaled = true;
        expect_kinds(v, {{"gated", 1}, {"mix", 1}, {"scales", 1}, {"plain", 3}}, true);
    }
    where = "more tokens than a launch takes";
    for (bool experts : {false, true}) {
        v = {}, v.tokens = max_vectors + 1, v.experts = experts;
        expect_kinds(v, {{"gated", 0}, {"mix", 0}, {"plain", 0}}, false);
    }
}

// The matrix that comes next is that of the same experts.
static void next_matrix() {
    where = "next";
    variation v;
    v.experts = true;
    layer_graph g(v);
    g.order();
    for (int i = 0; i < g.graph->n_nodes; i++) {
        product_group group = g.group_at(i);
        if (group.n > 0 && group.gated != GATE_NONE) {
            find_next(g.graph, group);
            EXPECT(group.next == g.named["down"]->src[0]);
            return;
        }
    }
    EXPECT(!"a gated group");
}

// What is changed in place between two of its readers is not read earlier than before.
static void changed_between() {
    where = "changed between";
    ggml_context *ctx = ggml_init({ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true});
    ggml_cgraph *graph = ggml_new_graph(ctx);
    const auto vector = [&] { return ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 256); };
    const auto product = [&](ggml_tensor *x) {
        return ggml_mul_mat(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_Q4_0, 256, 64), x);
    };
    ggml_tensor *x = ggml_mul(ctx, ggml_sqr(ctx, vector()), vector());
    ggml_tensor *first = product(x), *change = ggml_scale_inplace(ctx, x, 2.0f), *second = product(x);
    for (ggml_tensor *t : {first, change, second}) {
        ggml_build_forward_expand(graph, t);
    }
    const auto at = [&](const ggml_tensor *t) {
        return std::find(graph->nodes, graph->nodes + graph->n_nodes, t) - graph->nodes;
    };
    gather_products(graph, (int) at(x));
    EXPECT(at(first) < at(change) && at(change) < at(second));
    ggml_free(ctx);
}

// Random layers with random further readers and outputs: what is found must still be private, in order and complete.
static int random_layers(int seeds) {
    const ggml_type types[] = {GGML_TYPE_Q4_0, GGML_TYPE_Q8_0,   GGML_TYPE_Q6_K,
                               GGML_TYPE_Q4_K, GGML_TYPE_IQ2_XS, GGML_TYPE_F32};
    const ggml_glu_op activations[] = {GGML_GLU_OP_SWIGLU, GGML_GLU_OP_GEGLU, GGML_GLU_OP_REGLU,
                                       GGML_GLU_OP_GEGLU_QUICK};
    int groups = 0;
    for (int seed = 0; seed < seeds; seed++) {
        where = "seed " + std::to_string(seed);
        std::mt19937 rng(seed);
        const auto coin = [&](int one_in) { return rng() % one_in == 0; };
        variation v;
        v.experts = coin(2), v.merged = coin(3), v.biased = coin(3), v.head_norms = coin(2), v.gated = !coin(4);
        v.divided = coin(2), v.scaled = coin(3), v.f16_keys = coin(3), v.used = 1 + rng() % 6;
        v.tokens = coin(3) ? 2 + rng() % max_vectors : 1;
        v.type = types[rng() % (v.experts ? 5 : 6)], v.v_type = coin(2) ? v.type : types[rng() % 6];
        v.activation = activations[rng() % 4];
        layer_graph g(v);
        for (int readers = rng() % 4; readers > 0; readers--) { // anything that is computed may be read again
            ggml_tensor *t = g.graph->nodes[rng() % g.graph->n_nodes];
            if (t->type == GGML_TYPE_F32 && ggml_is_contiguous(t)) {
                ggml_tensor *read = coin(2) ? t : ggml_reshape_1d(g.ctx, t, ggml_nelements(t));
                ggml_build_forward_expand(g.graph, ggml_sqr(g.ctx, read));
            }
        }
        if (coin(3)) {
            ggml_set_output(g.graph->nodes[rng() % g.graph->n_nodes]);
        }
        const auto before = nodes_of(g);
        g.order();
        expect_order(g, before);
        std::map<std::string, int> kinds = walk(g);
        groups += kinds["gated"] + kinds["mix"] + kinds["plain"];
    }
    return groups;
}

int main(int argc, char **argv) {
    const int seeds = argc > 1 ? atoi(argv[1]) : 3000;
    known_layers();
    next_matrix();
    changed_between();
    const int groups = random_layers(seeds);
    printf("product groups: known layers right, %d groups in %d random ones are private, in order and complete\n",
           groups, seeds);
    return groups > seeds ? 0 : 1;
}
