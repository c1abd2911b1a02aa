#include "turbo/llama/kv_frame.h"

#include <algorithm>
#include <cmath>
#include <numeric>

// ln 8: scales of badly measured channels stay within what f16 and 8-bit types take.
static constexpr double LARGEST_LOG_SCALE = 2.0794415416798357;

// Rows that are rotated at a time, to bound the memory.
static constexpr uint32_t ROWS_AT_ONCE = 256;

// Mean and mean square, over the positions of a context, of a vector that RoPE turns.
struct position_mean {
    std::vector<double> first, second;
};

// The position below which a share of the weight of a context lies. Every text has a beginning and few fill a context: the weight
// of a position is alike up to KNEE and falls with the root of the position behind.
static int32_t position_at(double share, uint32_t n_ctx) {
    constexpr double KNEE = 256;
    const double all = n_ctx <= KNEE ? n_ctx : KNEE * (2 * std::sqrt(n_ctx / KNEE) - 1);
    const double weight = share * all;
    const double root = (weight / KNEE + 1) / 2;
    return (int32_t) std::min<double>(weight <= KNEE ? weight : KNEE * root * root, n_ctx - 1);
}

// Positions are rounded down to multiples of `step`.
static position_mean over_positions(const turbo_rope & rope, const std::vector<float> & x, int64_t head_dim, uint32_t n_ctx,
                                    int32_t step = 1) {
    const uint32_t samples = rope.used ? std::min<uint32_t>(n_ctx, 1024) : 1;
    const size_t width = x.size();
    position_mean mean = { std::vector<double>(width, 0), std::vector<double>(width, 0) };
    for (uint32_t first = 0; first < samples; first += ROWS_AT_ONCE) {
        const uint32_t rows = std::min(ROWS_AT_ONCE, samples - first);
        std::vector<int32_t> pos(rows);
        std::vector<float> turned;
        for (uint32_t r = 0; r < rows; ++r) {
            // One position a stratum, shifted by the golden ratio so that no frequency stays in step with the sampling.
            const double shift = std::fmod((first + r) * 0.6180339887498949, 1.0);
            pos[r] = position_at((first + r + shift) / samples, n_ctx) / step * step;
            turned.insert(turned.end(), x.begin(), x.end());
        }
        turbo_rope_apply(rope, turned, head_dim, (int64_t) width / head_dim, pos);
        for (size_t i = 0; i < turned.size(); ++i) {
            mean.first[i % width] += turned[i] / double(samples);
            mean.second[i % width] += turned[i] * double(turned[i]) / samples;
        }
    }
    return mean;
}

// x turned to each of n positions first, first + step, ..., one after the other.
static std::vector<float> turned(const turbo_rope & rope, const std::vector<float> & x, int64_t head_dim, uint32_t n,
                                 int32_t step) {
    std::vector<float> all;
    for (uint32_t first = 0; first < n; first += ROWS_AT_ONCE) {
        const uint32_t rows = std::min(ROWS_AT_ONCE, n - first);
        std::vector<int32_t> pos(rows);
        std::vector<float> part;
        for (uint32_t r = 0; r < rows; ++r) {
            pos[r] = (int32_t) (first + r) * step;
            part.insert(part.end(), x.begin(), x.end());
        }
        turbo_rope_apply(rope, part, head_dim, (int64_t) x.size() / head_dim, pos);
        all.insert(all.end(), part.begin(), part.end());
    }
    return all;
}

// The mean over the first positions of a context, so that its rotation to the first position of a run is the centre of that run.
static std::vector<float> run_mean(const turbo_rope & rope, const std::vector<float> & x, int64_t head_dim, uint32_t positions) {
    const std::vector<float> rows = turned(rope, x, head_dim, positions, 1);
    const double magnitude = turbo_rope_magnitude(rope, head_dim); // the second rotation multiplies by it once more
    std::vector<double> sum(x.size(), 0);
    for (size_t i = 0; i < rows.size(); ++i) {
        sum[i % x.size()] += rows[i];
    }
    std::vector<float> mean;
    for (const double s : sum) {
        mean.push_back((float) (s / positions / magnitude));
    }
    return mean;
}

// The error of a key, alike in all channels, grows with the length of the key as stored: of all scales those of the fourth root
// of the ratio of both second moments give dot products the least error.
static std::vector<float> balance(const std::vector<double> & key, const std::vector<double> & query, int64_t head_dim) {
    std::vector<float> a(key.size());
    for (size_t head = 0; head < a.size(); head += head_dim) {
        const auto floor_of = [&](const std::vector<double> & x) {
            return 1e-6 * std::accumulate(x.begin() + head, x.begin() + head + head_dim, 1e-30) / double(head_dim);
        };
        const double key_floor = floor_of(key), query_floor = floor_of(query);
        std::vector<double> logs(head_dim);
        for (int64_t c = 0; c < head_dim; ++c) {
            logs[c] = 0.25 * std::log((query[head + c] + query_floor) / (key[head + c] + key_floor));
        }
        const double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / double(head_dim);
        for (int64_t c = 0; c < head_dim; ++c) {
            a[head + c] = (float) std::exp(std::clamp(logs[c] - mean, -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE));
        }
    }
    return a;
}

// For each head, |a k|^2 |q / a|^2 as a share of |k|^2 |q|^2.
static std::vector<double> gain_of(const std::vector<float> & a, const std::vector<double> & key,
                                   const std::vector<double> & query, int64_t head_dim) {
    std::vector<double> gain;
    for (size_t head = 0; head < a.size(); head += head_dim) {
        double k = 0, q = 0, scaled_k = 0, scaled_q = 0;
        for (size_t c = head; c < head + head_dim; ++c) {
            const double square = double(a[c]) * a[c];
            k += key[c];
            q += query[c];
            scaled_k += key[c] * square;
            scaled_q += query[c] / square;
        }
        gain.push_back(k * q > 0 ? scaled_k * scaled_q / (k * q) : 1.0);
    }
    return gain;
}

turbo_layer_frame turbo_no_frame(const turbo_layer_keys & layer) {
    return { std::vector<float>(layer.sum.size(), 0.0f), {}, std::vector<double>(layer.n_head_kv, 1.0) };
}

turbo_layer_frame turbo_frame_of(const turbo_rope & rope, const turbo_layer_fit & fit, int64_t head_dim, uint32_t n_ctx,
                                 const turbo_frame_runs & runs) {
    const position_mean mean = over_positions(rope, fit.mean, head_dim, n_ctx);
    turbo_layer_frame frame;
    std::vector<double> taken; // mean square of what is subtracted
    if (runs.n > 0) {
        const std::vector<float> first = run_mean(rope, fit.mean, head_dim, runs.positions);
        frame.center = turned(rope, first, head_dim, runs.n, (int32_t) runs.positions);
        frame.center.insert(frame.center.end(), mean.first.begin(), mean.first.end());
        taken = over_positions(rope, first, head_dim, n_ctx, (int32_t) runs.positions).second;
    } else {
        frame.center.assign(mean.first.begin(), mean.first.end());
        for (const double m : mean.first) {
            taken.push_back(m * m);
        }
    }
    frame.gain.assign(fit.mean.size() / head_dim, 1.0);
    if (fit.moments.empty()) {
        return frame;
    }
    std::vector<double> key(fit.mean.size()), query(fit.mean.size(), 0);
    for (size_t i = 0; i < key.size(); ++i) { // what the centre leaves of the mean
        key[i] = std::max(mean.second[i] - taken[i], 0.0);
    }
    for (int part = 0; part < 2; ++part) {
        const position_mean k = over_positions(rope, fit.moments.key[part], head_dim, n_ctx);
        const position_mean q = over_positions(rope, fit.moments.query[part], head_dim, n_ctx);
        for (size_t i = 0; i < key.size(); ++i) {
            key[i] += k.second[i];
            query[i] += q.second[i];
        }
    }
    frame.scale = balance(key, query, head_dim);
    frame.gain = gain_of(frame.scale, key, query, head_dim);
    return frame;
}

std::vector<float> turbo_mean_key(const turbo_layer_keys & layer) {
    std::vector<float> mean(layer.sum_before.size());
    std::transform(layer.sum_before.begin(), layer.sum_before.end(), mean.begin(), [&](double s) { return float(s / layer.n); });
    return mean;
}

double turbo_center_disturbance(const turbo_layer_keys & layer, const turbo_layer_frame & frame, double mse) {
    double worst = 0;
    for (int64_t h = 0; h < layer.n_head_kv && layer.n_query > 0; ++h) {
        double left = layer.square[h] / layer.n; // E|k - c|^2 = E|k|^2 - 2 c.E k + |c|^2
        for (int64_t i = h * layer.head_dim; i < (h + 1) * layer.head_dim; ++i) {
            left += double(frame.center[i]) * (frame.center[i] - 2 * layer.sum[i] / layer.n);
        }
        const double query = layer.query[h] / layer.n_query;
        const double scale = layer.attention_scale;
        worst = std::max(worst, 0.5 * scale * scale * query * std::max(left, 0.0) * frame.gain[h] * mse / layer.head_dim);
    }
    return worst;
}
