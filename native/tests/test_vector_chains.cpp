// What turbo/cuda/vector_chains.h finds in graphs, without a GPU: layers as llama.cpp builds them, and random graphs,
// laid out in memory by ggml's allocator, whose chains are run as the kernel runs them and compared with every node
// computed by itself.
//
//   test_vector_chains [SEEDS]     default 3000

#include "turbo/cuda/vector_chains.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>

using namespace turbo_cuda;

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, where.c_str());                        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static std::string where;

static constexpr float epsilon = 1e-6f;

// A graph, and memory for what it does not compute.
struct test_graph {
    ggml_context *ctx = ggml_init({ggml_tensor_overhead() * 2048 + ggml_graph_overhead(), nullptr, true});
    ggml_cgraph *graph = ggml_new_graph(ctx);
    std::vector<std::unique_ptr<std::vector<float>>> memory;
    std::mt19937 rng;
    int n, vectors;

    test_graph(int n_, int vectors_, int seed = 1) : rng(seed), n(n_), vectors(vectors_) {}
    ~test_graph() { ggml_free(ctx); }
    test_graph(const test_graph &) = delete;

    float *room(const ggml_tensor *t) {
        memory.push_back(std::make_unique<std::vector<float>>(ggml_nelements(t)));
        return memory.back()->data();
    }
    ggml_tensor *given(int64_t n0, int64_t n1 = 1) {
        ggml_tensor *t = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n0, n1);
        float *x = room(t);
        for (int64_t i = 0; i < ggml_nelements(t); i++) {
            x[i] = 0.5f + (float) (rng() % 1000) / 1000.0f;
        }
        t->data = x;
        return t;
    }
    ggml_tensor *rms(ggml_tensor *x) { return ggml_rms_norm(ctx, x, epsilon); }
    ggml_tensor *normed(ggml_tensor *x) { return ggml_mul(ctx, rms(x), given(n)); }
    // Of any type: what is computed here is no product, but depends on all of x.
    ggml_tensor *product(ggml_tensor *x, ggml_type type, int64_t rows) {
        ggml_tensor *w = ggml_new_tensor_2d(ctx, type, x->ne[0], rows);
        w->data = memory.front()->data(); // never read
        return ggml_mul_mat(ctx, w, x);
    }
    ggml_tensor *expand(ggml_tensor *t) {
        ggml_build_forward_expand(graph, t);
        return t;
    }
    int at(const ggml_tensor *t) const {
        return (int) (std::find(graph->nodes, graph->nodes + graph->n_nodes, t) - graph->nodes);
    }
    void order() {
        for (int i = 0; i < graph->n_nodes; i++) {
            if (graph->nodes[i]->op == GGML_OP_MUL && is_vectors(graph->nodes[i])) {
                gather_products(graph, i);
            }
        }
        for (int i = 0; i < graph->n_nodes; i++) {
            if (graph->nodes[i]->op == GGML_OP_RMS_NORM) {
                gather_norms(graph, i);
            }
        }
    }
    // Chains as they would run; those of products are passed over.
    std::vector<vector_chain> chains() const {
        std::vector<vector_chain> found;
        for (int i = 0; i < graph->n_nodes; i++) {
            product_group group;
            vector_chain chain;
            if (match(graph, i, group)) {
                i = group.last;
            } else if (match(graph, i, chain)) {
                found.push_back(chain), i = chain.last;
            }
        }
        return found;
    }
};

// ---- layers
// -----------------------------------------------------------------------------------------------------------

struct layer {
    bool post_norms = false, experts = false, number = false;
    ggml_type type = GGML_TYPE_Q4_0; // of the products that may be joined
};

// What of it is looked for.
struct named_nodes {
    ggml_tensor *middle = nullptr, *router = nullptr, *expert_norm = nullptr, *end = nullptr;
};

// From the output of the attention to the next layer's queries. The experts are a product that is not joined.
static named_nodes build_layer(test_graph &g, const layer &l) {
    ggml_context *ctx = g.ctx;
    named_nodes named;
    ggml_tensor *x = ggml_scale(ctx, g.given(g.n, g.vectors), 2.0f), *o = ggml_tanh(ctx, g.given(g.n, g.vectors));
    g.expand(x);
    o = g.product(o, l.type, g.n);
    ggml_tensor *a = named.middle = ggml_add(ctx, l.post_norms ? g.normed(o) : o, x);
    ggml_tensor *experts = nullptr;
    if (l.experts) {
        ggml_tensor *tmp = ggml_scale(ctx, g.rms(a), 0.1f);
        named.router = tmp = ggml_mul(ctx, tmp, g.given(g.n));
        g.expand(ggml_tanh(ctx, g.product(tmp, GGML_TYPE_F32, 16)));
        named.expert_norm = g.normed(a);
        ggml_tensor *in = ggml_reshape_3d(ctx, named.expert_norm, g.n, 1, g.vectors);
        experts = g.expand(ggml_tanh(ctx, g.product(ggml_reshape_2d(ctx, in, g.n, g.vectors), GGML_TYPE_F16, g.n)));
    }
    ggml_tensor *f = g.normed(a);
    ggml_tensor *up = g.product(f, l.type, g.n), *gate = g.product(f, l.type, g.n);
    f = g.product(ggml_geglu_split(ctx, gate, up), l.type, g.n);
    if (l.experts) {
        f = ggml_add(ctx, g.normed(f), g.normed(experts));
    }
    f = ggml_add(ctx, l.post_norms ? g.normed(f) : f, a);
    if (l.number) {
        f = ggml_mul(ctx, f, g.given(1));
    }
    named.end = f;
    g.expand(ggml_add(ctx, g.product(g.normed(f), l.type, 64), g.given(64, g.vectors)));
    g.expand(ggml_tanh(ctx, f)); // the residual goes on
    return named;
}

// Nodes of every chain of a layer, and the nodes that are written.
static void expect_chains(const layer &l, const std::vector<int> &nodes, const std::vector<int> &written) {
    for (int vectors : {1, 3, max_vectors}) {
        test_graph g(256, vectors);
        build_layer(g, l);
        g.order();
        const std::vector<vector_chain> chains = g.chains();
        if (chains.size() != nodes.size()) {
            fprintf(stderr, "%s: %zu chains, %zu expected\n", where.c_str(), chains.size(), nodes.size());
            exit(1);
        }
        for (size_t c = 0; c < chains.size(); c++) {
            int n = 0;
            for (int i = chains[c].first; i <= chains[c].last; i++) {
                n += !ggml_op_is_empty(g.graph->nodes[i]->op);
            }
            EXPECT(n == nodes[c]);
            EXPECT((int) outputs_of(chains[c]).size() == written[c]);
        }
    }
}

static void known_layers() {
    layer l;
    where = "no post norms";
    expect_chains(l, {}, {});
    where = "post norms"; // what llama.cpp makes one launch of, and norms that products compute
    l.post_norms = true;
    expect_chains(l, {}, {});
    where = "post norms, a factor of the residual";
    l.number = true;
    expect_chains(l, {4}, {1});
    where = "post norms, products that are not joined";
    l.number = false, l.type = GGML_TYPE_IQ2_XS;
    expect_chains(l, {5, 5}, {2, 2});
    where = "no post norms, products that are not joined";
    l.post_norms = false;
    expect_chains(l, {3, 3}, {2, 2});
    where = "experts";
    l.post_norms = l.experts = l.number = true, l.type = GGML_TYPE_Q4_0;
    expect_chains(l, {8, 9}, {3, 1});
    where = "more vectors than a launch takes, or more values";
    for (const auto &[n, vectors] : {std::pair(256, max_vectors + 1), std::pair(max_chain_values + 256, 1)}) {
        test_graph g(n, vectors);
        build_layer(g, l);
        g.order();
        EXPECT(g.chains().empty());
    }
    where = "the most values";
    test_graph g(max_chain_values, 1);
    build_layer(g, l);
    g.order();
    EXPECT(g.chains().size() == 2);
}

// Which lines a layer with experts has, and that the experts' norm has come to where the router's is.
static void known_lines() {
    where = "lines";
    test_graph g(256, 1);
    layer l;
    l.post_norms = l.experts = l.number = true;
    const named_nodes named = build_layer(g, l);
    const ggml_tensor *choice = g.graph->nodes[next_computing(g.graph, g.at(named.router))];
    EXPECT(g.at(named.expert_norm) > g.at(choice));
    g.order();
    EXPECT(g.at(named.expert_norm) < g.at(choice));
    const std::vector<vector_chain> chains = g.chains();
    EXPECT(chains.size() == 2 && chains[0].n == 3 && chains[1].n == 4);
    const chain_line *a = chains[0].line, *b = chains[1].line;
    EXPECT(a[0].out == named.middle && a[0].written && a[0].rms && a[0].factor && a[0].add.tensor && !a[0].scale);
    EXPECT(a[1].out == named.router && a[1].start.line == 0 && a[1].rms && a[1].scale && a[1].factor);
    EXPECT(a[2].out == named.expert_norm && a[2].start == a[1].start && a[2].rms && !a[2].scale);
    EXPECT(!b[0].written && b[0].start.tensor && b[1].start.tensor && b[1].add.line == 0 && !b[1].written);
    EXPECT(b[2].start.line == 1 && b[2].add.tensor == named.middle && !b[2].written);
    EXPECT(b[3].start.line == 2 && !b[3].rms && ggml_nelements(b[3].factor) == 1 && b[3].out == named.end);
    EXPECT(b[3].written && !(b[3].start == b[2].start));
}

// What must keep nodes from being moved or joined.
static void kept_apart() {
    const auto lone = [](const char *name, auto change, size_t chains) {
        where = name;
        test_graph g(256, 1);
        ggml_tensor *x = ggml_tanh(g.ctx, g.given(256)), *a = ggml_add(g.ctx, g.normed(x), g.given(256));
        g.expand(a);
        ggml_tensor *later = change(g, a);
        g.order();
        EXPECT(g.chains().size() == chains);
        EXPECT(later == nullptr || g.at(later) > g.at(a) + 2);
    };
    const auto stranger = [](test_graph &g, ggml_tensor *x) { g.expand(ggml_tanh(g.ctx, x)); };
    lone(
        "a norm further on",
        [&](test_graph &g, ggml_tensor *a) -> ggml_tensor * {
            stranger(g, a);
            stranger(g, g.normed(a));
            return nullptr;
        },
        1);
    lone(
        "changed between",
        [&](test_graph &g, ggml_tensor *a) {
            stranger(g, a);
            g.expand(ggml_scale_inplace(g.ctx, a, 2.0f));
            ggml_tensor *norm = g.normed(a);
            stranger(g, norm);
            return norm;
        },
        0);
    lone(
        "an attention between",
        [&](test_graph &g, ggml_tensor *a) {
            const auto heads = [&](int64_t n) { return ggml_reshape_3d(g.ctx, g.given(64, n), 64, n, 1); };
            g.expand(ggml_flash_attn_ext(g.ctx, heads(1), heads(4), heads(4), nullptr, 1.0f, 0.0f, 0.0f));
            ggml_tensor *norm = g.normed(a);
            stranger(g, norm);
            return norm;
        },
        0);
    lone(
        "goes on where it is",
        [&](test_graph &g, ggml_tensor *a) {
            stranger(g, a);
            ggml_tensor *norm = g.normed(a);
            stranger(g, ggml_add(g.ctx, norm, g.given(256)));
            return norm;
        },
        0);
    lone(
        "turned",
        [&](test_graph &g, ggml_tensor *a) {
            stranger(g, a);
            ggml_tensor *norm = g.normed(a), *positions = ggml_new_tensor_1d(g.ctx, GGML_TYPE_I32, 1);
            g.expand(ggml_rope(g.ctx, norm, positions, 64, GGML_ROPE_TYPE_NEOX));
            return norm;
        },
        0);
    lone(
        "added to several",
        [&](test_graph &g, ggml_tensor *a) -> ggml_tensor * {
            g.expand(ggml_add(g.ctx, g.given(256, 3), a));
            return nullptr;
        },
        0);
    lone(
        "nothing to do with it",
        [&](test_graph &g, ggml_tensor *) -> ggml_tensor * {
            g.expand(g.normed(g.given(256)));
            return nullptr;
        },
        0);
    lone(
        "an upper bound",
        [&](test_graph &g, ggml_tensor *a) -> ggml_tensor * {
            stranger(g, ggml_scale(g.ctx, a, 0.1f));
            return nullptr;
        },
        0);
    lone(
        "no shape of theirs",
        [&](test_graph &g, ggml_tensor *a) -> ggml_tensor * {
            ggml_tensor *halves = ggml_reshape_2d(g.ctx, a, 128, 2);
            stranger(g, ggml_mul(g.ctx, g.rms(halves), g.given(128)));
            return nullptr;
        },
        0);
}

// A norm goes where its weights go.
static void with_weights() {
    where = "with its weights";
    test_graph g(256, 1);
    ggml_tensor *a = ggml_scale(g.ctx, ggml_add(g.ctx, g.normed(g.given(256)), g.given(256)), 2.0f);
    g.expand(ggml_mul(g.ctx, g.rms(a), a)); // weights of the chain's own making, which it cannot take
    const std::vector<vector_chain> chains = g.chains();
    EXPECT(chains.size() == 1 && chains[0].last == g.at(a) && chains[0].line[chains[0].n - 1].written);
}

// Where memory lets a chain run: in the place of what it reads, if that is as large.
static void in_place() {
    where = "in place";
    for (int vectors : {1, 2}) {
        test_graph g(64, vectors);
        ggml_tensor *x = ggml_tanh(g.ctx, g.given(64, vectors)), *factor = ggml_tanh(g.ctx, g.given(64));
        g.expand(x), g.expand(factor);
        ggml_tensor *out = ggml_scale(g.ctx, ggml_add(g.ctx, ggml_mul(g.ctx, g.rms(x), factor), x), 2.0f);
        g.expand(out);
        const std::vector<vector_chain> chains = g.chains();
        EXPECT(chains.size() == 1 && inputs_of(chains[0]).size() == 3 && outputs_of(chains[0]).size() == 1);
        std::vector<float> memory(1024);
        const auto lies = [&](size_t x_at, size_t factor_at, size_t out_at) {
            x->data = memory.data() + x_at, factor->data = memory.data() + factor_at;
            out->data = memory.data() + out_at;
            return apart(chains[0]);
        };
        EXPECT(lies(0, 256, 512) && lies(0, 256, 0));
        EXPECT(!lies(0, 256, 32) && !lies(32, 256, 0) && !lies(0, 256, 224));
        EXPECT(lies(0, 256, 256) == (vectors == 1));
    }
}

// ---- computing
// --------------------------------------------------------------------------------------------------------

static float *values(const ggml_tensor *t) {
    return (float *) t->data;
}

static void compute(const ggml_tensor *node) {
    const ggml_tensor *a = node->src[0], *b = node->src[1];
    std::vector<float> out(ggml_nelements(node));
    const int64_t n = node->ne[0], rows = ggml_nrows(node);
    const auto second = [&](int64_t row, int64_t i) {
        return values(b)[(ggml_nrows(b) == 1 ? 0 : row * b->ne[0]) + (b->ne[0] == 1 ? 0 : i)];
    };
    for (int64_t row = 0; row < rows; row++) {
        const float *x = values(a) + row * a->ne[0];
        float *y = out.data() + row * n, params[2];
        memcpy(params, node->op_params, sizeof(params));
        double squares = 0.0;
        for (int64_t i = 0; i < n && node->op == GGML_OP_RMS_NORM; i++) {
            squares += (double) x[i] * x[i];
        }
        for (int64_t i = 0; i < n; i++) {
            switch (node->op) {
                case GGML_OP_RMS_NORM: y[i] = x[i] / (float) std::sqrt(squares / n + params[0]); break;
                case GGML_OP_SCALE: y[i] = x[i] * params[0] + params[1]; break;
                case GGML_OP_MUL: y[i] = x[i] * second(row, i); break;
                case GGML_OP_ADD: y[i] = x[i] + second(row, i); break;
                case GGML_OP_UNARY: y[i] = std::tanh(x[i]); break;
                case GGML_OP_MUL_MAT: { // something of the vector
                    const float *v = values(b) + row * b->ne[0];
                    y[i] = 0.7f * v[(7 * i + 3) % b->ne[0]] - 0.4f * v[(3 * i + 1) % b->ne[0]];
                } break;
                default: EXPECT(!"a known operator");
            }
        }
    }
    std::copy(out.begin(), out.end(), values(node));
}

// As the kernel does: sums of squares first need all of a vector, then every place is read, changed and written by
// itself. Here one place after the other, which is the worst case if what is written overlaps what is read.
static void run(const vector_chain &chain) {
    const ggml_tensor *shape = chain.line[0].out;
    const int64_t n = shape->ne[0];
    for (int64_t v = shape->ne[1] - 1; v >= 0; v--) {
        float inverse[max_chain_lines];
        const auto line_at = [&](int64_t i, int lines, float (&result)[max_chain_lines], bool write) {
            const auto read = [&](const ggml_tensor *t) {
                return values(t)[(ggml_are_same_shape(t, shape) ? v * n : 0) + (ggml_nelements(t) == 1 ? 0 : i)];
            };
            float first[max_chain_lines], factor[max_chain_lines], add[max_chain_lines];
            for (int l = 0; l < lines; l++) {
                const chain_line &line = chain.line[l];
                first[l] = line.start.tensor != nullptr ? read(line.start.tensor) : 0.0f;
                factor[l] = line.factor != nullptr ? read(line.factor) : 1.0f;
                add[l] = line.add.tensor != nullptr ? read(line.add.tensor) : 0.0f;
            }
            for (int l = 0; l < lines; l++) {
                const chain_line &line = chain.line[l];
                float scale[2] = {1.0f, 0.0f};
                if (line.scale != nullptr) {
                    memcpy(scale, line.scale->op_params, sizeof(scale));
                }
                const float x = line.start.line >= 0 ? result[line.start.line] : first[l];
                const float sum = line.add.line >= 0 ? result[line.add.line] : add[l];
                result[l] = (x * (line.rms != nullptr ? inverse[l] : 1.0f) * scale[0] + scale[1]) * factor[l] + sum;
                if (write && line.written) {
                    values(line.out)[v * n + i] = result[l];
                }
            }
            const chain_input &next = chain.line[std::min(lines, chain.n - 1)].start; // of the line behind them
            return next.line >= 0 ? result[next.line] : lines < chain.n ? read(next.tensor) : 0.0f;
        };
        float result[max_chain_lines];
        for (int l = 0; l < chain.n; l++) {
            double squares = 0.0;
            for (int64_t i = 0; i < n; i++) {
                const float x = line_at(i, l, result, false);
                squares += (double) x * x;
            }
            inverse[l] = 1.0f / (float) std::sqrt(squares / n + epsilon);
        }
        for (int64_t i = 0; i < n; i++) {
            line_at(i, chain.n, result, true);
        }
    }
}

// ---- random graphs
// ----------------------------------------------------------------------------------------------------

// Chains of norms, factors and sums with strangers between them, read again anywhere.
static std::vector<ggml_tensor *> build_random(test_graph &g) {
    const auto one_in = [&](int n) { return g.rng() % n == 0; };
    std::vector<ggml_tensor *> pool = {ggml_tanh(g.ctx, g.given(g.n, g.vectors))};
    const auto any = [&] {
        return one_in(2) ? pool.back() : pool[pool.size() - 1 - g.rng() % std::min<size_t>(pool.size(), 6)];
    };
    const auto second = [&](bool number) {
        return one_in(3)             ? any()
               : number && one_in(4) ? g.given(1)
               : one_in(4)           ? ggml_tanh(g.ctx, g.given(g.n)) // whose memory is given to others
               : one_in(3)           ? g.given(g.n, g.vectors)
                                     : g.given(g.n);
    };
    std::vector<ggml_tensor *> results;
    for (int left = 12 + (int) (g.rng() % 30); left > 0; left--) {
        ggml_tensor *x = any(), *y = nullptr;
        switch (g.rng() % 13) {
            case 0:
            case 1: y = g.normed(x); break;
            case 2:
            case 3: y = ggml_add(g.ctx, g.normed(x), any()); break;
            case 4: y = g.rms(x); break;
            case 5: y = ggml_scale_bias(g.ctx, x, 0.5f, one_in(2) ? 0.1f : 0.0f); break;
            case 6:
            case 7: y = ggml_add(g.ctx, x, second(false)); break;
            case 8: y = ggml_mul(g.ctx, x, second(true)); break;
            case 9: y = g.product(x, one_in(2) ? GGML_TYPE_Q4_0 : GGML_TYPE_F16, g.n); break;
            case 10: y = ggml_reshape_2d(g.ctx, x, g.n, g.vectors); break;
            case 11:
                y = g.product(g.product(x, GGML_TYPE_F16, g.n * 3 / 2), GGML_TYPE_F16, g.n);
                break; // of other sizes
            default: y = ggml_tanh(g.ctx, x);
        }
        if (one_in(6)) {
            g.expand(y);
        }
        if (one_in(20)) {
            ggml_set_output(y);
            results.push_back(g.expand(y));
        }
        if (one_in(25) && y->op != GGML_OP_RESHAPE) { // what has been built reads it before, what comes later after
            g.expand(y);
            for (ggml_tensor *t : pool) {
                g.expand(t);
            }
            y = g.expand(ggml_scale_inplace(g.ctx, y, 0.9f));
            results.erase(std::remove(results.begin(), results.end(), y->view_src), results.end());
        }
        pool.push_back(y);
    }
    results.push_back(g.expand(ggml_tanh(g.ctx, pool.back())));
    return results;
}

// Memory of its own for every tensor that is computed.
static void give_memory(test_graph &g) {
    for (int i = 0; i < g.graph->n_nodes; i++) {
        ggml_tensor *t = g.graph->nodes[i];
        t->data = t->view_src != nullptr ? (char *) t->view_src->data + t->view_offs : (char *) g.room(t);
    }
}

// As ggml's scheduler lays a graph out: what is to be kept is read by a node of its own.
static ggml_gallocr_t lay_out(test_graph &g, const std::vector<vector_chain> &chains) {
    ggml_cgraph *copy = ggml_new_graph(g.ctx);
    copy->n_leafs = g.graph->n_leafs;
    std::copy(g.graph->leafs, g.graph->leafs + g.graph->n_leafs, copy->leafs);
    std::map<int, std::vector<const ggml_tensor *>> kept;
    for (const vector_chain &chain : chains) {
        kept[chain.last] = inputs_of(chain);
    }
    for (int i = 0; i < g.graph->n_nodes; i++) {
        ggml_tensor *t = g.graph->nodes[i];
        t->data = nullptr, t->buffer = nullptr;
        copy->nodes[copy->n_nodes++] = t;
        for (const ggml_tensor *keep : kept[i]) {
            ggml_tensor *reader = ggml_view_tensor(g.ctx, const_cast<ggml_tensor *>(base_of(keep)));
            reader->src[0] = const_cast<ggml_tensor *>(base_of(keep));
            copy->nodes[copy->n_nodes++] = reader;
        }
    }
    ggml_gallocr_t allocator = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
    EXPECT(ggml_gallocr_alloc_graph(allocator, copy));
    return allocator;
}

static std::vector<float> all_of(const std::vector<ggml_tensor *> &results) {
    std::vector<float> all;
    for (const ggml_tensor *t : results) {
        all.insert(all.end(), values(t), values(t) + ggml_nelements(t));
    }
    return all;
}

struct found_chains {
    int all = 0, run = 0, lines = 0, moved = 0, long_ones = 0;
};

static void one_random(int seed, found_chains &found) {
    where = "seed " + std::to_string(seed);
    test_graph g(32, 1 + seed % 3 * (seed % 4), seed);
    const std::vector<ggml_tensor *> results = build_random(g);
    const std::vector<ggml_tensor *> before(g.graph->nodes, g.graph->nodes + g.graph->n_nodes);
    give_memory(g);
    for (const ggml_tensor *node : before) {
        if (!ggml_op_is_empty(node->op)) {
            compute(node);
        }
    }
    const std::vector<float> expected = all_of(results);
    g.order();
    found.moved += !std::equal(before.begin(), before.end(), g.graph->nodes);
    const std::vector<vector_chain> chains = g.chains();
    // some without being kept: then memory may be where a chain cannot run, and must say so
    ggml_gallocr_t allocator = lay_out(g, seed % 3 == 0 ? std::vector<vector_chain>() : chains);
    size_t next = 0;
    for (int i = 0; i < g.graph->n_nodes; i++) {
        if (next < chains.size() && chains[next].first == i) {
            const vector_chain &chain = chains[next++];
            found.all++, found.lines += chain.n, found.long_ones += chain.n == max_chain_lines;
            EXPECT(launches_of(g.graph, chain) > 1);
            if (apart(chain)) {
                found.run++, run(chain), i = chain.last;
                continue;
            }
            EXPECT(seed % 3 == 0);
        }
        if (!ggml_op_is_empty(g.graph->nodes[i]->op)) {
            compute(g.graph->nodes[i]);
        }
    }
    const std::vector<float> got = all_of(results);
    for (size_t i = 0; i < got.size(); i++) {
        EXPECT(std::fabs(got[i] - expected[i]) <= 1e-3f * (1.0f + std::fabs(expected[i])));
    }
    ggml_gallocr_free(allocator);
}

int main(int argc, char **argv) {
    const int seeds = argc > 1 ? atoi(argv[1]) : 3000;
    known_layers();
    known_lines();
    kept_apart();
    with_weights();
    in_place();
    found_chains found;
    for (int seed = 0; seed < seeds; seed++) {
        one_random(seed, found);
    }
    printf("vector chains: known layers right, %d chains of %d lines in %d random graphs give what their nodes give "
           "(%d run, %d of most lines, %d graphs ordered anew)\n",
           found.all, found.lines, seeds, found.run, found.long_ones, found.moved);
    return found.run > seeds / 2 && found.run < found.all && found.moved > 0 ? 0 : 1;
}
