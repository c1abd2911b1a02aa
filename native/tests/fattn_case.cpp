// Random flash attention cases and their float64 answers.

#include "fattn_case.h"

#include <math.h>
#include <string.h>

#include <algorithm>

#include "turbo/cpu/codec.h"
#include "turbo/kv_runs.h"

namespace fattn_test {
namespace {

const uint16_t half_minus_infinity = 0xfc00;

// float32 to f16, to nearest; for normal results only (the data below are)
uint16_t to_half(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000;
    const float magnitude = fabsf(x);
    if (magnitude < 6.2e-5f) {
        return (uint16_t) sign;
    }
    memcpy(&bits, &magnitude, sizeof bits);
    return (uint16_t) (sign | ((bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13));
}

float from_half(uint16_t h) {
    const int exponent = h >> 10 & 31;
    const float fraction = (float) (h & 1023);
    const float magnitude = exponent ? ldexpf(1024.0f + fraction, exponent - 25) : ldexpf(fraction, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

size_t type_bytes(ggml_type type) {
    const turbo_type_desc *desc = turbo_desc_of(type);
    return desc ? (size_t) desc->bytes : type == GGML_TYPE_F16 ? 2 : type == GGML_TYPE_Q8_0 ? 34 : 18;
}

int type_block(ggml_type type) {
    const turbo_type_desc *desc = turbo_desc_of(type);
    return desc ? desc->block : type == GGML_TYPE_F16 ? 1 : 32;
}

size_t row_bytes(ggml_type type, int width) { return (size_t) (width / type_block(type)) * type_bytes(type); }

// Blocks of 32 integers in [-top, top] with an f16 scale; q4_0 keeps them as nibbles, value i beside value i + 16.
void encode_integers(const float *x, uint8_t *y, int width, bool nibbles, float *decoded) {
    const float top = nibbles ? 7.0f : 127.0f;
    for (int b = 0; b < width; b += 32, y += nibbles ? 18 : 34) {
        float largest = 0.0f;
        for (int i = 0; i < 32; i++) {
            largest = std::max(largest, fabsf(x[b + i]));
        }
        const uint16_t scale = to_half(largest / top);
        memcpy(y, &scale, 2);
        for (int i = 0; i < 32; i++) {
            const float unit = from_half(scale);
            const int code = unit == 0.0f ? 0
                                          : std::max(-(int) top, std::min((int) top, (int) lrintf(x[b + i] / unit)));
            decoded[b + i] = (float) code * unit;
            if (!nibbles) {
                y[2 + i] = (uint8_t) code;
            } else if (i < 16) {
                y[2 + i] = (uint8_t) (code + 8);
            } else {
                y[2 + i - 16] |= (uint8_t) ((code + 8) << 4);
            }
        }
    }
}

void encode_row(ggml_type type, const float *x, uint8_t *y, int width, float *decoded) {
    if (const turbo_type_desc *desc = turbo_desc_of(type)) {
        turbo_encode(desc, x, y, width);
        turbo_decode(desc, y, decoded, width);
    } else if (type == GGML_TYPE_F16) {
        for (int i = 0; i < width; i++) {
            const uint16_t half = to_half(x[i]);
            memcpy(y + 2 * i, &half, 2);
            decoded[i] = from_half(half);
        }
    } else {
        encode_integers(x, y, width, type == GGML_TYPE_Q4_0, decoded);
    }
}

ggml_tensor tensor_of(ggml_type type, void *data, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    ggml_tensor t;
    memset(&t, 0, sizeof t);
    t.type = type;
    t.data = data;
    const int64_t ne[4] = {ne0, ne1, ne2, ne3};
    memcpy(t.ne, ne, sizeof ne);
    return t;
}

void dense_strides(ggml_tensor *t, size_t element) {
    t->nb[0] = element;
    for (int i = 1; i < 4; i++) {
        t->nb[i] = t->nb[i - 1] * (size_t) t->ne[i - 1];
    }
}

struct layout {
    int width, heads, streams;
    ggml_type type;
};

// Fill one side: tensor, bytes and decoded values.
void make_side(const shape &s, const layout &l, std::mt19937 &random, float spread, ggml_tensor *t,
               std::vector<uint8_t> *bytes, std::vector<float> *values) {
    const size_t row = row_bytes(l.type, l.width);
    const size_t token = row * (size_t) (s.interleaved ? l.heads : 1) + (size_t) s.padding;
    const size_t plane = token * (size_t) s.keys;
    *t = tensor_of(l.type, NULL, l.width, s.keys, l.heads, l.streams);
    t->nb[0] = type_bytes(l.type);
    t->nb[1] = token;
    t->nb[2] = s.interleaved ? row : plane;
    t->nb[3] = s.interleaved ? plane : plane * (size_t) l.heads;
    bytes->assign(t->nb[3] * (size_t) l.streams, 0xff);
    t->data = bytes->data();
    values->resize((size_t) l.streams * (size_t) l.heads * (size_t) s.keys * (size_t) l.width);
    std::normal_distribution<float> normal;
    std::vector<float> x((size_t) l.width);
    float *out = values->data();
    for (int stream = 0; stream < l.streams; stream++) {
        for (int head = 0; head < l.heads; head++) {
            for (int key = 0; key < s.keys; key++, out += l.width) {
                const float size = spread * expf(0.5f * normal(random));
                for (float &value : x) {
                    value = size * normal(random);
                }
                x[3] *= 4.0f; // a channel that stands out
                uint8_t *at = bytes->data() + (size_t) key * t->nb[1] + (size_t) head * t->nb[2] +
                              (size_t) stream * t->nb[3];
                memset(at, 0, row);
                encode_row(l.type, x.data(), at, l.width, out);
            }
        }
    }
}

bool hides(const shape &s, int query, int key, std::mt19937 &random) {
    switch (s.mask) {
        case mask_causal: return key > s.keys - s.queries + query;
        case mask_random: return random() % 3 == 0;
        case mask_rows: return query % 2 == 0 || random() % 4 == 0;
        case mask_tiles: return key / 64 % 2 == 0 || key == s.keys - 1;
        case mask_window: return key < s.keys / 2 + query || key >= s.keys / 2 + query + 40;
        default: return false;
    }
}

void make_mask(const shape &s, std::mt19937 &random, problem *p) {
    const int heads = s.mask_per_head ? s.heads : 1;
    p->mask_data.resize((size_t) s.keys * (size_t) s.queries * (size_t) heads * (size_t) s.mask_streams);
    p->mask = tensor_of(GGML_TYPE_F16, p->mask_data.data(), s.keys, s.queries, heads, s.mask_streams);
    dense_strides(&p->mask, 2);
    std::uniform_real_distribution<float> bias(-3.0f, 1.0f);
    size_t at = 0;
    for (int plane = 0; plane < heads * s.mask_streams; plane++) {
        for (int query = 0; query < s.queries; query++) {
            for (int key = 0; key < s.keys; key++) {
                const bool biased = s.mask == mask_bias || s.max_bias > 0.0f;
                p->mask_data[at++] = hides(s, query, key, random) ? half_minus_infinity
                                                                  : to_half(biased ? bias(random) : 0.0f);
            }
        }
    }
}

// Centres as large as the keys, with a channel that stands out as in real models, in rows that are further apart than
// they are long.
void make_runs(const shape &s, std::mt19937 &random, problem *p) {
    const int cells = 64 * s.run_tiles, rows = (s.keys + cells - 1) / cells + 1, width = s.width_k * s.heads_k, spare = 32;
    p->run_data.assign((size_t) rows * (size_t) (width + spare), 0xffff);
    p->runs = tensor_of(GGML_TYPE_F16, p->run_data.data(), width, rows, 1, 1);
    dense_strides(&p->runs, 2);
    p->runs.nb[1] = (size_t) (width + spare) * 2;
    std::normal_distribution<float> normal;
    for (int row = 0; row < rows; row++) {
        for (int i = 0; i < width; i++) {
            p->run_data[(size_t) (row * (width + spare) + i)] = to_half((i % s.width_k == 5 ? 20.0f : 1.0f) *
                                                                        normal(random));
        }
    }
    turbo_runs_describe(&p->runs, cells, s.keys);
    turbo_runs_set_flat(&p->runs, s.flat);
}

// Overwrite the blocks of keys that no query sees.
void poison_unseen(problem *p) {
    const shape &s = p->s;
    for (int key = 0; key < s.keys; key++) {
        bool seen = false;
        for (size_t at = (size_t) key; at < p->mask_data.size(); at += (size_t) s.keys) {
            seen |= p->mask_data[at] != half_minus_infinity;
        }
        if (seen) {
            continue;
        }
        for (ggml_tensor *t : {&p->k, &p->v}) {
            for (int64_t plane = 0; plane < t->ne[2] * t->ne[3]; plane++) {
                const size_t offset = (size_t) (plane % t->ne[2]) * t->nb[2] + (size_t) (plane / t->ne[2]) * t->nb[3];
                memset((uint8_t *) t->data + offset + (size_t) key * t->nb[1], 0xff,
                       row_bytes(t->type, (int) t->ne[0]));
            }
        }
    }
}

} // namespace

std::string type_text(ggml_type type) {
    const turbo_type_desc *desc = turbo_desc_of(type);
    return desc ? desc->name : type == GGML_TYPE_F16 ? "f16" : type == GGML_TYPE_Q8_0 ? "q8_0" : "q4_0";
}

bool fits(ggml_type type, int width) { return width % type_block(type) == 0; }

std::vector<ggml_type> side_types(int block) {
    std::vector<ggml_type> types = {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0};
    for (int i = 0; i < TURBO_TYPE_COUNT; i++) {
        if (turbo_desc(i)->block == block) {
            types.push_back(turbo_type_of_index(i));
        }
    }
    return types;
}

std::string shape::text() const {
    char line[512];
    snprintf(line, sizeof line,
             "%s/%s width %d/%d heads %d/%d/%d queries %d keys %d streams %d/%d/%d mask %d%s x%d sinks %d scale %g cap "
             "%g bias %g "
             "interleaved %d padding %d poison %d run tiles %d%s",
             type_text(type_k).c_str(), type_text(type_v).c_str(), width_k, width_v, heads, heads_k, heads_v, queries,
             keys, streams, streams_k, streams_v, mask, mask_per_head ? " per head" : "", mask_streams, sinks,
             (double) scale, (double) cap, (double) max_bias, interleaved, padding, poison, run_tiles,
             flat ? " flat" : "");
    return line;
}

problem::problem(const shape &shape_, unsigned seed) : s(shape_) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    make_side(s, {s.width_k, s.heads_k, s.streams_k, s.type_k}, random, 1.0f, &k, &k_data, &k_values);
    make_side(s, {s.width_v, s.heads_v, s.streams_v, s.type_v}, random, 0.5f, &v, &v_data, &v_values);
    // Q as the graph hands it over: [width, queries, heads], its rows a permuted view of [width, heads, queries]
    q_data.resize((size_t) s.width_k * (size_t) s.heads * (size_t) s.queries * (size_t) s.streams);
    for (float &value : q_data) {
        value = normal(random);
    }
    q = tensor_of(GGML_TYPE_F32, q_data.data(), s.width_k, s.queries, s.heads, s.streams);
    q.nb[0] = sizeof(float);
    q.nb[2] = (size_t) s.width_k * sizeof(float);
    q.nb[1] = q.nb[2] * (size_t) s.heads;
    q.nb[3] = q.nb[1] * (size_t) s.queries;
    if (s.mask != mask_none) {
        make_mask(s, random, this);
        if (s.poison) {
            poison_unseen(this);
        }
    }
    sink_data.resize((size_t) s.heads);
    for (float &value : sink_data) {
        value = 2.0f * normal(random);
    }
    sinks = tensor_of(GGML_TYPE_F32, sink_data.data(), s.heads, 1, 1, 1);
    dense_strides(&sinks, sizeof(float));
    dst_data.resize((size_t) s.width_v * (size_t) s.heads * (size_t) s.queries * (size_t) s.streams);
    dst = tensor_of(GGML_TYPE_F32, dst_data.data(), s.width_v, s.heads, s.queries, s.streams);
    dense_strides(&dst, sizeof(float));
    dst.op = GGML_OP_FLASH_ATTN_EXT;
    const float params[3] = {s.scale, s.max_bias, s.cap};
    memcpy(dst.op_params, params, sizeof params);
    ggml_tensor *const sources[5] = {&q, &k, &v, s.mask != mask_none ? &mask : NULL, s.sinks ? &sinks : NULL};
    memcpy(dst.src, sources, sizeof sources);
    if (s.run_tiles > 0) {
        make_runs(s, random, this);
        dst.src[TURBO_RUNS_SRC] = &runs;
    }
}

std::vector<double> problem::reference(double *typical) const {
    std::vector<double> out(dst_data.size());
    std::vector<double> scores((size_t) s.keys);
    int low = 1;
    while (low * 2 <= s.heads) {
        low *= 2;
    }
    double *to = out.data();
    for (int stream = 0; stream < s.streams; stream++) {
        for (int query = 0; query < s.queries; query++) {
            for (int head = 0; head < s.heads; head++, to += s.width_v) {
                const double slope = s.max_bias <= 0.0f ? 1.0
                                     : head < low       ? pow(2.0, -s.max_bias * (head + 1) / low)
                                                        : pow(2.0, -s.max_bias / 2 * (2 * (head - low) + 1) / low);
                const float *x = (const float *) (const void *) ((const char *) q.data + (size_t) query * q.nb[1] +
                                                                 (size_t) head * q.nb[2] + (size_t) stream * q.nb[3]);
                const int stream_k = stream / (s.streams / s.streams_k), stream_v = stream / (s.streams / s.streams_v);
                const int head_k = head / (s.heads / s.heads_k), head_v = head / (s.heads / s.heads_v);
                const float *keys = k_values.data() +
                                    (size_t) (stream_k * s.heads_k + head_k) * (size_t) s.keys * (size_t) s.width_k;
                const float *values = v_values.data() +
                                      (size_t) (stream_v * s.heads_v + head_v) * (size_t) s.keys * (size_t) s.width_v;
                double top = s.sinks ? sink_data[(size_t) head] : -INFINITY;
                for (int key = 0; key < s.keys; key++) {
                    double score = 0;
                    for (int i = 0; i < s.width_k; i++) {
                        double value = keys[(size_t) key * (size_t) s.width_k + (size_t) i];
                        if (s.run_tiles > 0) {
                            const int64_t run = s.flat ? runs.ne[1] - 1 : key / (64 * s.run_tiles);
                            const size_t row = (size_t) run * (runs.nb[1] / 2);
                            value += from_half(run_data[row + (size_t) (head_k * s.width_k + i)]);
                        }
                        score += x[i] * value;
                    }
                    score *= s.scale;
                    if (s.cap != 0.0f) {
                        score = s.cap * tanh(score / s.cap);
                    }
                    if (s.mask != mask_none) {
                        const uint16_t half = *(
                            const uint16_t *) (const void *) ((const char *) mask.data + (size_t) key * 2 +
                                                              (size_t) query * mask.nb[1] +
                                                              (size_t) (head % mask.ne[2]) * mask.nb[2] +
                                                              (size_t) (stream % mask.ne[3]) * mask.nb[3]);
                        score = half == half_minus_infinity ? -INFINITY : score + slope * from_half(half);
                    }
                    scores[(size_t) key] = score;
                    top = std::max(top, score);
                }
                if (top == -INFINITY) {
                    continue; // sees nothing: zeros
                }
                double sum = s.sinks ? exp(sink_data[(size_t) head] - top) : 0.0;
                for (int key = 0; key < s.keys; key++) {
                    const double weight = exp(scores[(size_t) key] - top);
                    sum += weight;
                    for (int i = 0; i < s.width_v; i++) {
                        to[i] += weight * values[(size_t) key * (size_t) s.width_v + (size_t) i];
                    }
                }
                for (int i = 0; i < s.width_v; i++) {
                    to[i] /= sum;
                }
            }
        }
    }
    double squares = 0;
    for (const float value : v_values) {
        squares += (double) value * value;
    }
    *typical = sqrt(squares / (double) v_values.size());
    return out;
}

} // namespace fattn_test
